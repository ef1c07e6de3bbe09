"""Captures a user's step as a program, with its guards and its effects."""
