"""From layers and a cluster to a plan of stages, as a value, text, JSON and pictures."""
