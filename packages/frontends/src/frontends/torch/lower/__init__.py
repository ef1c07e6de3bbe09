"""Lowers a stage's chunks to programs of calls on shards and collectives."""
