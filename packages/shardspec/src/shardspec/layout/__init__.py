"""Meshes, specs and layouts: where each element of a tensor is."""
