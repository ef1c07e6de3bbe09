"""Hypothesis profiles, and the order of the files."""

import os

import pytest
from hypothesis import settings

settings.register_profile("default", max_examples=100, deadline=None, derandomize=True)
settings.register_profile("nightly", max_examples=10_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

LONG = ("test_transports.py", "test_torch.py", "test_sync_jobs.py")
"""The files that take the longest, longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with long files, so that no test process is alone at the end."""
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))
