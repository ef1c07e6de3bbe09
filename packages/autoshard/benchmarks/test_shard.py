"""How long does it take to shard a GPT's training step, and what is found?

Baseline: pure data parallelism on the same mesh, which fixes how the inputs are stored and searches
the rest. A GPT of 1 or 2 blocks (d = 128, sequence 128, batch 8, 4 microbatches), one operator a
primitive, is sharded over four devices of a host of the preset `two-hosts`, as one or two axes. The
gap is between the predicted time of a step and its lower bound; 0 proves that nothing is faster.

Not shown: limits on memory, and larger meshes.
"""

import pytest
from autoshard import baseline, shard
from autoshard.programs import gpt_step
from costmodel import Cluster
from shardspec import Mesh

MESHES = {"4": Mesh((4,), ("x",)), "2x2": Mesh((2, 2), ("x", "y"))}
CLUSTER = Cluster.preset("two-hosts")


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize("how", ["data_parallel", "search"])
def test_gpt(benchmark, how, n_layers, mesh):
    graph = gpt_step(
        n_layers=n_layers, batch=8, length=128, width=128, heads=4, vocabulary=256, microbatches=4
    )

    def data_parallel():
        return baseline(graph, MESHES[mesh], CLUSTER, "data_parallel")

    def search():
        return shard(graph, MESHES[mesh], CLUSTER, compare=False)

    found = benchmark.pedantic({"data_parallel": data_parallel, "search": search}[how], rounds=3)

    assert found.solution.gap < 0.3
    benchmark.extra_info["predicted step"] = f"{found.objective_s * 1e3:.2f} ms"
    benchmark.extra_info["gap"] = f"{found.solution.gap:.1%}"
    if how == "search":
        assert found.objective_s <= data_parallel().objective_s
        benchmark.extra_info["baseline"] = f"test_gpt[data_parallel-{n_layers}-{mesh}]"
