"""Independent checkers of schedules and of programs."""
