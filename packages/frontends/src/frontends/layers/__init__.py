"""Cut a step into layers, leave out repeats of equal layers, and replicate layers."""
