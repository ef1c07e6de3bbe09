"""Simulates schedules: when each action runs, and how much memory each rank holds."""
