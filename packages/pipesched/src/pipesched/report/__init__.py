"""Schedules as text, pictures and traces."""
