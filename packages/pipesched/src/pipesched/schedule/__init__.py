"""Schedules, the programs they are lowered to, and their costs."""
