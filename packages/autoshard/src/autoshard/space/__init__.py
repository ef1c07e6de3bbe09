"""Strategies of an operator and conversions between layouts, with their prices."""
