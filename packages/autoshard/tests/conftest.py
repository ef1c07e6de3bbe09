"""Hypothesis profiles and a sharding that many tests use."""

import os

import pytest
from autoshard import Sharding, shard
from autoshard.programs import mlp_step
from costmodel import Cluster
from hypothesis import settings
from shardspec import Mesh

settings.register_profile("default", max_examples=100, deadline=None, derandomize=True)
settings.register_profile("nightly", max_examples=10_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def mlp() -> Sharding:
    """A training step of an MLP in two microbatches, on a square mesh in one host."""
    graph = mlp_step(batch=32, width=64, hidden=256, microbatches=2)
    mesh = Mesh((2, 2), ("data", "model"))
    return shard(graph, mesh, Cluster.preset("two-hosts"), memory_bytes=2**20)
