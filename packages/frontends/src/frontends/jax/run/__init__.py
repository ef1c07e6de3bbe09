"""Runs a plan on the devices of one process or of several."""
