"""Plan and run PyTorch training steps, on stock torch."""
