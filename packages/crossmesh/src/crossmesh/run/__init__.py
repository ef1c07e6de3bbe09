"""Executes a plan over any transport."""
