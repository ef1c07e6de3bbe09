"""Draws timelines as text and as pictures, and writes them as traces."""
