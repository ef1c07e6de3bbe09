"""Checks of numbers, sizes of dtypes, and dataclasses as JSON."""
