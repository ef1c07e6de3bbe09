"""Bytes of activations, parameters and optimizer state, and how many microbatches are held."""
