"""Plans the cheapest sequence of collectives from one layout to another on the same mesh."""
