"""Hypothesis profiles, golden files, and a sharding that many tests look at."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from autoshard import Sharding, shard
from autoshard.programs import mlp_step
from costmodel import Cluster
from hypothesis import settings
from shardspec import Mesh

settings.register_profile("default", max_examples=100, deadline=None, derandomize=True)
settings.register_profile("nightly", max_examples=10_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    with contextlib.suppress(ValueError):  # a sibling's conftest may have added it already
        parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")


@pytest.fixture
def check_golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with a golden file, or write it if asked to."""

    def compare(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / name
        if request.config.getoption("--update-golden", default=False):
            path.write_text(text + "\n", encoding="utf-8")
        assert text + "\n" == path.read_text(encoding="utf-8")

    return compare


@pytest.fixture(scope="session")
def mlp() -> Sharding:
    """A training step of an MLP in two microbatches, on a square mesh in one host."""
    graph = mlp_step(batch=32, width=64, hidden=256, microbatches=2)
    mesh = Mesh((2, 2), ("data", "model"))
    return shard(graph, mesh, Cluster.preset("two-hosts"), memory_bytes=2**20)
