"""Helpers that all floors above use: source lines, cache keys, rule tables, process heartbeats."""
