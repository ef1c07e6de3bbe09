"""Compares the memory that plans take of a device with the memory that was planned."""
