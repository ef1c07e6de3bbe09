"""Checks of arguments, names, arrays, JSON and the compiled core."""
