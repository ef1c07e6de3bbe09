"""Operators, numbers, lines and trees of PyTorch, and all that is private there."""
