"""Devices, processes and the engine that runs a plan."""
