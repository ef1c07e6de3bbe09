"""Devices, links and clusters, and the presets of real ones."""
