"""Seconds of collectives and of resharding plans."""
