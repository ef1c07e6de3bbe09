"""The exact search that slices layers into stages: shortest paths by dynamic programming."""
