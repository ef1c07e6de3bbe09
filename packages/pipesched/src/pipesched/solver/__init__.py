"""Searches for the best schedule within a memory limit."""
