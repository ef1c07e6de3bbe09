"""The sharding rules of PyTorch's operators."""
