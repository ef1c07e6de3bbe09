"""Batches and state: made and placed."""
