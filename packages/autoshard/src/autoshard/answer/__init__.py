"""A sharding that was found: its costs and memory, explained, compared and verified."""
