"""Cuts arrays into shards; compares two layouts in common units, and bounds what moves between."""
