"""Candidates for a plan, and the best of them."""
