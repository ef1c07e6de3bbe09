"""From a stage's chunk to a compiled program."""
