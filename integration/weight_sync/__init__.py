"""Measures the weight sync of crossmesh between emulated hosts, beside what is done by hand."""
