"""Prices as tables and plots."""
