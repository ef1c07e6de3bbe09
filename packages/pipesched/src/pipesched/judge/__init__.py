"""Independent checkers of schedules and programs, and closed forms of their times."""
