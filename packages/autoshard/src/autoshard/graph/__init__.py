"""Graphs of operators, and the rules that say along which loops an operator may be split."""
