"""Graphs of layers that are not a chain."""
