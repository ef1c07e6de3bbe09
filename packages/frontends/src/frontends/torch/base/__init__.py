"""Operators, numbers, source lines and trees as data, and all use of private PyTorch."""
