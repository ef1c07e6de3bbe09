"""Checks of arguments, names in text, arrays, JSON, and access to the compiled core."""
