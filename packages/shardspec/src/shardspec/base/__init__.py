"""Axes, partial sums and how a dim is cut: what every floor above speaks of."""
