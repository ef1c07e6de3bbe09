"""How long does one price of a collective take, and how many prices per second do arrays give?

A search needs millions of prices. The targets are at most 5 µs for one price, and at least 10
million a second in arrays. Groups are all eight devices of the preset `two-hosts` (two levels), and
the 4,096 devices of 512 hosts in leaves of 16 (three levels). `fastest` compares all algorithms and
names the best one; "ring" is a formula of Table 2 for comparison, "step" one step of a resharding.
Arrays have a million sizes from 1 B to 1 GB.

Not shown: the first price in a group, which needs its links and composes its algorithms; except
`first`, the first price in the large cluster, with caches cleared.
"""

from typing import get_args

import numpy as np
import pytest
from costmodel import (
    Cluster,
    CollectiveKind,
    Host,
    Level,
    Link,
    all_reduce_time,
    collective_time,
    fastest,
    step_time,
)
from costmodel.time.choose import _candidates, _lines
from shardspec import Layout, Mesh, Spec, reshard

SMALL = Cluster.preset("two-hosts")
HOST = Host(SMALL.device, 8, Link(2e-6, 300e9))
LEAVES = (
    Level("leaf", 16, Link(5e-6, 25e9), rails=8),
    Level("spine", 512, Link(9e-6, 100e9), rails=8),
)
CLUSTERS = {"8": SMALL, "4096": Cluster("512x8", (HOST,) * 512, LEAVES)}
KINDS = get_args(CollectiveKind)
SIZES = np.geomspace(1, 1e9, 1_000_000)


def links(devices):
    cluster = CLUSTERS[devices]
    return cluster.links(Mesh((cluster.n_devices,), ("x",)))


@pytest.mark.parametrize("devices", CLUSTERS)
@pytest.mark.parametrize("kind", KINDS)
def test_one(benchmark, kind, devices):
    group = links(devices).group((0,))

    choice = benchmark(fastest, kind, 1e6, group)

    assert choice.seconds == collective_time(kind, 1e6, group)
    benchmark.extra_info["algorithm"] = choice.algorithm


def test_one_ring(benchmark):
    seconds = benchmark(all_reduce_time, 8, 1e6, SMALL.inter_host)

    assert seconds == pytest.approx(15 * 50e-6 + 2 * 7 / 8 * 1e6 / 125e6)


def test_one_step(benchmark):
    mesh = Mesh((2, 4), ("host", "device"))
    (step,) = reshard(*(Layout((1024, 1024), mesh, Spec.parse(s)) for s in ("S01R", "RR"))).steps
    on_cluster = SMALL.links(mesh)

    seconds = benchmark(step_time, step, 4, on_cluster)

    assert seconds == collective_time("all_gather", 2**22, on_cluster.group((0, 1)))


@pytest.mark.parametrize("devices", CLUSTERS)
@pytest.mark.parametrize("kind", KINDS)
def test_array(benchmark, kind, devices):
    group = links(devices).group((0,))

    seconds = benchmark.pedantic(collective_time, (kind, SIZES, group), rounds=10, warmup_rounds=1)

    assert seconds[-1] == fastest(kind, SIZES[-1], group).seconds
    if benchmark.stats:  # not with --benchmark-disable
        per_second = len(SIZES) / benchmark.stats["median"]
        benchmark.extra_info["prices a second"] = f"{per_second / 1e6:.0f} million"


def test_array_ring(benchmark):
    seconds = benchmark.pedantic(
        all_reduce_time, (8, SIZES, SMALL.inter_host), rounds=10, warmup_rounds=1
    )

    assert seconds[0] == pytest.approx(all_reduce_time(8, 1, SMALL.inter_host))
    if benchmark.stats:
        per_second = len(SIZES) / benchmark.stats["median"]
        benchmark.extra_info["prices a second"] = f"{per_second / 1e6:.0f} million"


def test_first(benchmark):
    def forget():
        _lines.cache_clear()
        _candidates.cache_clear()
        return (links("4096"),), {}

    choice = benchmark.pedantic(
        lambda on_cluster: fastest("all_reduce", 1e6, on_cluster.group((0,))),
        setup=forget,
        rounds=10,
    )

    assert choice.algorithm == "hierarchical"
