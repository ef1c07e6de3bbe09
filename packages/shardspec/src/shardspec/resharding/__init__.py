"""The cheapest sequence of collectives from one layout to another, found by search."""
