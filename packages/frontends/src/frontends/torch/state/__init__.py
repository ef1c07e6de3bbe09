"""Initializes, loads and assembles state: parameters, buffers and optimizer state."""
