"""How many stages must be priced when each has a bound, and how long does the search itself take?

Baseline: the same search without a bound, which prices every stage that it may use; both find the
same step time. Models of 8, 16 and 32 layers of different sizes are cut for two hosts of four
devices and 8 microbatches; in "tight", a device has room for half of the layers. The bound is FLOPs
over peak FLOP/s. A stage costs a tenth more than that, and a time for each device that it spans.

A price is a formula here and takes microseconds, so the medians are what the search takes beside
its prices: with a bound, it searches again after each slicing that it prices. In a planner a price
is itself a search for a sharding, and the number of stages priced matters more. Not shown: how
close a bound comes to the costs of a real model, on which that number depends, and larger clusters.
"""

import pytest
from stagecut import StageCost, slice_stages

PEAK_FLOPS_PER_S = 1e11
CLUSTER = (2, 4)


def flops(layer):
    """Between 1 and 1.6 GFLOP, in no order."""
    return 1e9 + 1e8 * (layer * 5 % 7)


def bound_s(first, last, submesh):
    total = sum(flops(layer) for layer in range(first, last + 1))
    return total / (PEAK_FLOPS_PER_S * submesh[0] * submesh[1])


def cost(first, last, submesh):
    hosts, devices = submesh
    communication_s = 1e-4 * (devices - 1) + 2e-3 * (hosts - 1)
    layers = last - first + 1
    return StageCost(
        bound_s(first, last, submesh) * 1.1 + communication_s * layers,
        fixed_bytes=layers << 26,
        activation_bytes=layers << 22,
    )


CASES = {"8 layers": (8, None), "16 layers": (16, None), "32 layers": (32, None)}
CASES["16 layers tight"] = (16, 16 << 25)
"""Layers, and memory of a device in bytes; the last has room for half of the layers."""


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("prices", ["all", "bounded"])
def test_slice_stages(benchmark, prices, case):
    n_layers, memory_bytes = CASES[case]
    arguments = n_layers, CLUSTER, 8, cost, memory_bytes
    options = {"bound_s": bound_s} if prices == "bounded" else {}

    slicing = benchmark.pedantic(slice_stages, arguments, options, rounds=5, warmup_rounds=1)

    everything = slice_stages(*arguments)
    assert slicing.time_s == slicing.lower_bound_s == pytest.approx(everything.time_s)
    benchmark.extra_info["stages priced"] = f"{slicing.n_priced} of {everything.n_priced}"
    if prices == "bounded":
        benchmark.extra_info["baseline"] = f"test_slice_stages[all-{case}]"
