"""The generators of schedules, with one file for each family, and the table of all names."""
