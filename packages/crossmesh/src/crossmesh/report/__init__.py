"""Plans explained, compared and drawn."""
