"""Runs a plan: shards, collectives, process groups, and the engine."""
