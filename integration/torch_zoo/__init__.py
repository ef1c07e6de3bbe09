"""PyTorch models as their users write them, trained by plans and compared with eager runs."""
