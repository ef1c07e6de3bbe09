"""A training step as data: its operators with their phases, and the memory that it takes."""
