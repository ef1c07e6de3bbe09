"""Operators of a model grouped into layers."""
