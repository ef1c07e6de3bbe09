"""Shards, collectives, process groups and the engine that runs a plan."""
