"""Devices, links and clusters, and presets of real clusters."""
