"""Shows layouts and resharding plans as text, pictures and JSON."""
