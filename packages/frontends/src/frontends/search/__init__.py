"""Search for the best plan of a step on a cluster."""
