"""What was measured on a machine, and the model's numbers fitted to it."""
