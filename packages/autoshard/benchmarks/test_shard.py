"""How long it takes to shard a GPT's training step, one operator a primitive."""

import pytest
from autoshard import shard
from autoshard.programs import gpt_step
from costmodel import Cluster
from shardspec import Mesh


@pytest.mark.parametrize("shape", [(4,), (2, 2)], ids=str)
@pytest.mark.parametrize("n_layers", [1, 3])
def test_gpt(benchmark, n_layers, shape):
    graph = gpt_step(
        n_layers=n_layers, batch=8, length=128, width=128, heads=4, vocabulary=256, microbatches=4
    )
    mesh = Mesh(shape, ("x", "y")[: len(shape)])
    cluster = Cluster.preset("two-hosts")
    sharding = benchmark.pedantic(
        lambda: shard(graph, mesh, cluster, compare=False), rounds=3, iterations=1
    )
    assert sharding.solution.gap < 0.3
