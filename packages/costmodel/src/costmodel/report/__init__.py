"""Profiles as tables and plots."""
