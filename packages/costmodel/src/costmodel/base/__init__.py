"""Checks of arguments, dtypes and JSON."""
