"""Hypothesis profiles, and golden files."""

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("default", max_examples=100, deadline=None, derandomize=True)
settings.register_profile("nightly", max_examples=10_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_addoption(parser):
    with contextlib.suppress(ValueError):  # a sibling's conftest may have added it already
        parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")


@pytest.fixture
def golden(request):
    """Compare a text with a golden file, or write it if asked to."""

    def compare(name, text):
        path = Path(__file__).parent / "golden" / name
        if request.config.getoption("--update-golden", default=False):
            path.write_text(text + "\n", encoding="utf-8")
        assert text + "\n" == path.read_text(encoding="utf-8")

    return compare
