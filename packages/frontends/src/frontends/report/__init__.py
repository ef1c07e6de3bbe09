"""Plans as text, pictures and pages, explained and compared."""
