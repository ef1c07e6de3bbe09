"""Checks the built site of docs/: it is complete, loads nothing from elsewhere, and works."""
