"""What a run of layers costs on a mesh, in each way to keep its state."""
