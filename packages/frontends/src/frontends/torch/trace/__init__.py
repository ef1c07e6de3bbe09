"""From a graph to a step, and to one that is cut into microbatches."""
