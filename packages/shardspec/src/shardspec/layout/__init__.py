"""Meshes, specs and layouts: which device holds which elements of a tensor."""
