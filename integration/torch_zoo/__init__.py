"""PyTorch models as their users write them, and what plans make of them."""
