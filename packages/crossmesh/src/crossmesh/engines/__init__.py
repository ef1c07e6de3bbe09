"""Transports over threads and torch.distributed."""
