"""How long does it take to cut a graph into stages without an order, and what does that gain?

Operator by operator, one device a stage: Alpa's smallest Wide-ResNet and GPT on p3.16xlarge (one
host, then two), and two towers of transformer-like blocks that the program runs in turns. The
baseline is the best cut in the program's order, which is also where the search starts; "gain" is how
much longer its step is. The search runs to its end, so the step found is the shortest there is.

Not shown: graphs of thousands of operators, which are clustered first, and memory, which limits
nothing here.
"""

import pytest
from costmodel import Cluster
from stagecut import Boundary, StageCost, split_graph
from stagecut.models import model
from stagecut.profiles import Profile


def operators(name, n_stages, platform):
    """One operator a node, at the cost of one device."""
    each = model(name)
    layers = [(k, k) for k in range(len(each.operators))]
    profile = Profile(each, layers, Cluster.preset(platform), each.n_microbatches)
    nodes = [profile.cost(k, k, (1, 1))[0] for k, _ in layers]

    def transfer_s(n_bytes):
        return profile.transfer_s(n_bytes, (1, 1), (1, 1))

    return nodes, profile.edges, n_stages, each.n_microbatches, transfer_s


def towers(n_blocks, n_stages):
    """Two chains of blocks in turns, of which the first does twice the work; the last joins them."""
    nodes = [StageCost(2.0 - k % 2, 0, 0) for k in range(2 * n_blocks)]
    values = [Boundary(k, 1_000_000, (k + 2,)) for k in range(2 * n_blocks - 2)]
    values.append(Boundary(2 * n_blocks - 2, 1_000_000, (2 * n_blocks - 1,)))
    return nodes, values, n_stages, 16, lambda n_bytes: n_bytes / 1e7


CASES = {
    "wide-resnet-250m, 2 stages": (operators, "wide-resnet-250m", 2, "p3.16xlarge"),
    "wide-resnet-250m, 4 stages": (operators, "wide-resnet-250m", 4, "p3.16xlarge:2"),
    "gpt-350m, 2 stages": (operators, "gpt-350m", 2, "p3.16xlarge"),
    "towers of 24 blocks, 4 stages": (towers, 24, 4),
}


@pytest.mark.parametrize("case", CASES)
def test_split_graph(benchmark, case):
    make, *arguments = CASES[case]
    nodes, values, n_stages, n_microbatches, transfer_s = make(*arguments)

    split = benchmark.pedantic(
        split_graph,
        (nodes, values, n_stages, n_microbatches),
        {"transfer_s": transfer_s},
        rounds=3,
    )

    assert split.gap == 0
    assert split.time_s <= split.linear_s
    benchmark.extra_info["nodes"] = len(nodes)
    benchmark.extra_info["gain"] = f"{split.linear_s / split.time_s - 1:.1%}"
