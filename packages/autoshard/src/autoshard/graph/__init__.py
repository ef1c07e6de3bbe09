"""Graphs of operators and the rules by which an operator may be cut."""
