"""How long does it take to shard a training step on one mesh, and what is found?

From a graph to a priced sharding: tables of rules and conversions, the problem, its solution, and
the steps of every conversion. `bar` is the time that we hold ourselves to on two cores.

- `gpt`: 1 or 2 blocks (d = 128, sequence 128, batch 8, 4 microbatches), one operator a primitive,
  on four devices of a host of the preset `two-hosts`, as one or two axes. Baseline: pure data
  parallelism on the same mesh, which fixes how the inputs are stored and searches the rest.
- `transformer`: GPT-2 small with Adam, 12 layers and 5,012 operators, batch 64, on 8 H100s.
- `block`: attention and an MLP 6144 wide, without norms, on 256 H100s: the block, mesh, batch and
  length of the example in Meta's AutoParallel.
- `llama`: Llama 3 8B with Adam, 32 layers and 9,315 operators, batch 64, length 8192, on 64 H100s.
  AutoParallel took 18 s on two axes and 198 s on three for 32 layers of this shape.

These three price the five baselines too, each a search of its own, as `shard` does unless it is
told not to. In `transformer` and `llama` repeated layers are tied. The gap is between the predicted
time of a step and its lower bound, which knows nothing of ties; 0 proves that nothing is faster.
`memory` is the most that this process has held so far.

Not shown: limits on a device's memory, which make problems harder.
"""

import resource

import pytest
from autoshard import baseline, shard
from autoshard.programs import block_step, gpt_step, llama_step, transformer_step
from costmodel import Cluster
from shardspec import Mesh

MESHES = {"4": Mesh((4,), ("x",)), "2x2": Mesh((2, 2), ("x", "y"))}
TWO_HOSTS = Cluster.preset("two-hosts")
H100 = Cluster.preset("h100-sxm")


def note(benchmark, found, bar_s=None):
    """What was found, beside the time."""
    benchmark.extra_info["predicted step"] = f"{found.objective_s * 1e3:.4g} ms"
    benchmark.extra_info["gap"] = f"{found.solution.gap:.1%}"
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB, on Linux
    benchmark.extra_info["memory"] = f"{held:.2g} GiB"
    if bar_s is not None:
        benchmark.extra_info["bar"] = f"{bar_s} s"


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize("how", ["data_parallel", "search"])
def test_gpt(benchmark, how, n_layers, mesh):
    graph = gpt_step(
        n_layers=n_layers, batch=8, length=128, width=128, heads=4, vocabulary=256, microbatches=4
    )

    def data_parallel():
        return baseline(graph, MESHES[mesh], TWO_HOSTS, "data_parallel")

    def search():
        return shard(graph, MESHES[mesh], TWO_HOSTS, compare=False)

    found = benchmark.pedantic({"data_parallel": data_parallel, "search": search}[how], rounds=3)

    assert found.solution.gap < 0.3
    note(benchmark, found)
    if how == "search":
        assert found.objective_s <= data_parallel().objective_s
        benchmark.extra_info["baseline"] = f"test_gpt[data_parallel-{n_layers}-{mesh}]"


def measure(benchmark, graph, shape, bar_s, **options):
    """One search, whose tables are empty: a second round would find them full."""
    mesh = Mesh(shape, ("x", "y", "z")[: len(shape)])
    cluster = H100.resized(n_hosts=mesh.size // H100.devices_per_host)
    found = benchmark.pedantic(shard, (graph, mesh, cluster), options)
    assert found.lower_bound_s <= found.objective_s
    note(benchmark, found, bar_s)


def layers(benchmark, n_layers):
    """All of them where they are measured; one is enough to see that it works."""
    return n_layers if benchmark.enabled else 1


def test_transformer_of_5000_operators(benchmark):
    graph = transformer_step(
        n_layers=layers(benchmark, 12),
        batch=64,
        length=1024,
        width=768,
        heads=12,
        vocabulary=50304,
    )
    measure(benchmark, graph, (2, 4), bar_s=10, tie=True)


def test_wide_block(benchmark):
    graph = block_step(width=6144, heads=48, hidden=4 * 6144, batch=256, length=256)
    measure(benchmark, graph, (32, 8), bar_s=1)


@pytest.mark.parametrize(("shape", "bar_s"), [((8, 8), 20), ((4, 4, 4), 60)], ids=["8x8", "4x4x4"])
def test_llama_3_8b(benchmark, shape, bar_s):
    graph = llama_step(batch=64, length=8192, n_layers=layers(benchmark, 32))
    measure(benchmark, graph, shape, bar_s, tie=True)
