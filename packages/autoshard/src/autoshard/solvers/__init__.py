"""Solvers of a `Problem`, exact and heuristic."""
