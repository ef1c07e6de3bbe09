"""XLA's `HloSharding` text."""
