"""Checks of arguments, stages and their prices, boundaries between stages, workers and progress."""
