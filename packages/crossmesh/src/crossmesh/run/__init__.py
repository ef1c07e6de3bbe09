"""Execution of a plan over any transport."""
