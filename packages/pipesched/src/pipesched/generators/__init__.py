"""The known schedules, a family a file, and the table of all that are known by name."""
