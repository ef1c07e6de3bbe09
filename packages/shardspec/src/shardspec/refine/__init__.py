"""Shards of a layout, and moves that any search over layouts is made of."""
