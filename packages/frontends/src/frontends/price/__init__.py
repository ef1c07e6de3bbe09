"""Time and memory of a run of layers on a mesh, for each way to store its state."""
