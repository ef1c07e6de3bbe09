"""Reads batches, and makes, places, saves and restores state."""
