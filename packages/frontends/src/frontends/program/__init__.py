"""From a plan to the instructions of its devices, and whether they fit together."""
