"""A training step as data: its operators, their phases, and the memory that it takes."""
