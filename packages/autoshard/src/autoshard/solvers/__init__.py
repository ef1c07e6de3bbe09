"""Solvers of that problem, exact and heuristic."""
