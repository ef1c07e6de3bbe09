"""Seconds of collectives, of resharding and of operators."""
