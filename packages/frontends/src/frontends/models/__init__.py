"""Models that examples train."""
