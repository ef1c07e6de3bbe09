"""Bytes of activations, parameters and optimizer states, and the number of held microbatches."""
