"""Compares `reshard` with torch and XLA: how many bytes move, and how long does planning take?

A round plans one pair of specs of a float32 tensor of 64 MiB, or more if the mesh is too long for
its dims. A case is a mesh, the tensor's rank, and "sums" if each source has partial sums; the
destinations have none. Its pairs are all ordered pairs of specs that shard whole axes, in any order
(also `S10`), or a sample of them, the same for every planner and in every run. Every planner can
express all of these, and no shards are uneven.

"bytes / bound" is what all devices receive under all plans of the case, over the least that any
plan could bring them; "worst pair" is the largest such ratio of one pair, and "collectives" their
number in a plan. Steps of torch and XLA are priced with ring algorithms: with `n` devices in a
group and `b` bytes on each before the step, a device receives `(n - 1) b` in an all-gather,
`(n - 1) b / n` in an all-to-all and a reduce-scatter, twice that in an all-reduce. For `reshard`
the bytes are those that its plan states; `test_reshard.py` counts the bound and most steps again,
by elements.

Seconds are those of planning alone, with empty caches. "99th percentile" is over the pairs, each
with the median of its three rounds. `torch` is the default planner of `DTensor.redistribute` (which
uses the other one for orders like `S10`), `torch min-cost` the one that
`use_min_cost_redistribution_plan` selects; both have flattened meshes for all axes, which allow
torch to merge collectives. `xla` compiles the identity with `jax.jit` for eight virtual devices;
its seconds are those of the whole compilation.

Not shown: the time to run a plan, memory, and torch on six axes, because its time grows about
tenfold with each axis; `test_reshard.py` has six axes.
"""

import pytest
from cases import Case, Shardspec, measure
from shardspec import Layout, Mesh, Spec
from torch_planner import TorchPlanner
from xla_partitioner import XlaPartitioner, price_program

PLANNERS = {
    "torch": lambda: TorchPlanner(min_cost=False),
    "torch min-cost": lambda: TorchPlanner(min_cost=True),
    "reshard": Shardspec,
}
CASES = [
    Case(mesh, rank, partial, at_most=500 if rank == 3 or partial else 2500)
    for partial in (False, True)
    for mesh in ((2, 2), (4, 2), (2, 2, 2))
    for rank in (1, 2, 3)
]
MORE_AXES = [Case((2,), 2), Case((2,) * 4, 2, at_most=50), Case((2,) * 5, 2, at_most=20)]
MORE_DEVICES = [Case((n, n), 2) for n in (16, 64, 256)]


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("case", [*CASES, *MORE_AXES, *MORE_DEVICES], ids=str)
def test_plan(benchmark, case, planner):
    measure(benchmark, PLANNERS[planner](), case.pairs())
    if planner != "torch":
        benchmark.extra_info["baseline"] = f"test_plan[{case}-torch]"


@pytest.mark.parametrize("planner", [*PLANNERS, "xla"])
def test_beside_xla(benchmark, planner):
    """On a sample of pairs, because XLA takes longest."""
    pairs = Case((2, 2, 2), 2, at_most=250).pairs()
    if planner == "xla":
        measure(benchmark, XlaPartitioner(), pairs, runs=1)
    else:
        measure(benchmark, PLANNERS[planner](), pairs)
    if planner != "torch":
        benchmark.extra_info["baseline"] = "test_beside_xla[torch]"


MIB = 2**20


@pytest.mark.parametrize(
    ("planner", "src", "dst", "received_bytes", "collectives"),
    [
        # 8 MiB on 2 x 2 x 2 devices: `S01` leaves 2 MiB on each.
        (TorchPlanner(min_cost=False), "RR", "S0R", 0, 0),
        (TorchPlanner(min_cost=False), "S01R", "RR", 8 * 6 * MIB, 1),  # merged
        (TorchPlanner(min_cost=False), "S10R", "RR", 8 * 6 * MIB, 2),
        (TorchPlanner(min_cost=False), "S0R", "RS0", 8 * 2 * MIB, 1),
        (TorchPlanner(min_cost=False), "RR+P0", "S0R", 8 * 4 * MIB, 1),
        (TorchPlanner(min_cost=False), "RR+P0+P1", "RR", 8 * 12 * MIB, 1),  # merged
        (XlaPartitioner(), "RR", "S0R", 0, 0),
        (XlaPartitioner(), "S01R", "RR", 8 * 6 * MIB, 1),
        (XlaPartitioner(), "S0R", "RS0", 8 * 2 * MIB, 1),
        (XlaPartitioner(), "S0S1", "S1S0", 4 * 2 * MIB, 1),  # half of the devices stay as they are
    ],
)
def test_adapters_price_as_worked_out_by_hand(planner, src, dst, received_bytes, collectives):
    mesh = Mesh((2, 2, 2), ("x", "y", "z"))
    layouts = [Layout((2048, 1024), mesh, Spec.parse(spec)) for spec in (src, dst)]
    assert planner.price(*layouts) == (received_bytes, collectives)


@pytest.mark.parametrize(
    "groups",
    [
        "{{0,2,4,6},{1,3,5,7}}",
        "[2,4]<=[4,2]T(1,0)",
        "mesh['axis_0'=4,'axis_1'=2] {'axis_0'}",
        "mesh['axis_0'=2,'axis_1'=4], device_ids=([4,2]T(1,0)) {'axis_0','axis_1':(2)2}",
    ],
)
def test_collectives_are_priced_in_each_notation_of_groups(groups):
    line = f"%c = (f32[8,2]{{1,0}}, bf16[]) all-gather(%a, %b), replica_groups={groups}, dimensions"
    assert price_program(line, n_devices=8) == (8 * 66 * 3 // 4, 1)


def test_what_has_no_price_is_not_passed_over():
    with pytest.raises(NotImplementedError, match="no price for this collective: %r = f32"):
        price_program("  %r = f32[8]{0} ragged-all-to-all(%a, %b)", n_devices=8)
