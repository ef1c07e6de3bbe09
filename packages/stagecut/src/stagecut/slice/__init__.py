"""The dynamic program that slices layers into stages."""
