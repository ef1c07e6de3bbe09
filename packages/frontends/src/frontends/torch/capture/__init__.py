"""From a user's step to a graph, with all that it depends on and does besides."""
