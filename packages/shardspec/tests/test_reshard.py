import heapq
import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardspec import (
    Layout,
    Mesh,
    ReshardError,
    Spec,
    UnevenLayoutError,
    reshard,
    shard,
    simulate,
)
from shardspec.testing import check_plan, every_spec, layout_pairs

MESHES = [Mesh((2, 2), ("x", "y")), Mesh((4, 2), ("x", "y")), Mesh((2, 2, 2), ("x", "y", "z"))]
SMALL, TALL, CUBE = MESHES


def layouts_of(shape, mesh, src, dst):
    return Layout(shape, mesh, Spec.parse(src)), Layout(shape, mesh, Spec.parse(dst))


def plan_of(src, dst, shape=(8, 8), mesh=SMALL):
    return reshard(*layouts_of(shape, mesh, src, dst))


def pairs_of(mesh, rank):
    sources = list(every_spec(mesh, rank))
    for src, dst in itertools.product(sources, sources):
        if set(dst.partial) <= set(src.partial):
            yield src, dst


# The data


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("mesh", [SMALL, TALL], ids=["2x2", "4x2"])
def test_every_pair_ends_in_the_directly_sliced_tensor(mesh, rank):
    shape = (mesh.size,) * rank
    for src, dst in pairs_of(mesh, rank):
        check_plan(reshard(Layout(shape, mesh, src), Layout(shape, mesh, dst)))


def test_every_pair_of_vectors_on_a_cube_ends_in_the_directly_sliced_tensor():
    for src, dst in pairs_of(CUBE, 1):
        check_plan(reshard(Layout((8,), CUBE, src), Layout((8,), CUBE, dst)))


@pytest.mark.parametrize("rank", [2, 3])
@given(data=st.data())
def test_sampled_pairs_on_a_cube_end_in_the_directly_sliced_tensor(rank, data):
    specs = list(every_spec(CUBE, rank))
    src = data.draw(st.sampled_from(specs))
    dst = data.draw(st.sampled_from([s for s in specs if set(s.partial) <= set(src.partial)]))
    check_plan(reshard(Layout((8,) * rank, CUBE, src), Layout((8,) * rank, CUBE, dst)))


@given(layout_pairs())
def test_any_pair_ends_in_the_directly_sliced_tensor(pair):
    check_plan(reshard(*pair))


def test_partial_results_of_two_kinds_combine_from_the_last_axis_to_the_first():
    whole = np.arange(8).reshape(2, 4)
    plan = plan_of("RR+P0+Pmax1", "S0R", (2, 4))
    check_plan(plan)
    assert [step.reduction for step in plan.steps] == ["max", "sum"]
    parts = {0: whole, 1: whole - 1, 2: whole * 2, 3: whole * 3}
    expected = (np.maximum(parts[0], parts[1]) + np.maximum(parts[2], parts[3]))[:1]
    np.testing.assert_array_equal(simulate(plan, parts)[0], expected)


# The price


@pytest.mark.parametrize(
    ("src", "dst", "kinds", "received"),
    [
        ("RR", "S0S1", ["slice", "slice"], 0),
        ("S0R", "RR", ["all_gather"], 32),  # all-gather(M, 0): M / 2 of M = 64
        ("S0S1", "S0R", ["all_gather"], 16),  # all-gather(M / n0, 1)
        ("S0R", "RS0", ["all_to_all"], 16),  # all-to-all(M / n0, 0)
        ("S0S1", "S01R", ["all_to_all"], 8),  # all-to-all(M / (n0 n1), 1)
    ],
)
def test_alpa_table_2(src, dst, kinds, received):
    plan = plan_of(src, dst)
    assert [step.kind for step in plan.steps] == kinds
    assert plan.received_bytes(itemsize=1) == received
    assert plan.received_bytes(itemsize=4) == 4 * received


@pytest.mark.parametrize(
    ("src", "dst", "kinds", "received"),
    [
        ("RR+P0", "RR", ["all_reduce"], 2 * 48),  # 2 (p - 1) / p of 64 bytes, p = 4
        ("RR+P0", "S0R", ["reduce_scatter"], 48),
        ("S0R", "RR", ["all_gather"], 48),
        ("S0R", "RS0", ["all_to_all"], 12),
        ("RR+Pmax0", "RR", ["all_reduce"], 2 * 48),
        ("RR+Pmax0", "S0R", ["all_reduce", "slice"], 2 * 48),  # only sums scatter
    ],
)
def test_autoddl_table_2(src, dst, kinds, received):
    plan = plan_of(src, dst, mesh=Mesh((4,), ("x",)))
    assert [step.kind for step in plan.steps] == kinds
    assert plan.received_bytes(itemsize=1) == received
    assert [step.sent_bytes(1) for step in plan.steps] == [
        step.received_bytes(1) for step in plan.steps
    ]


def test_an_all_reduced_scalar_is_received_once_in_each_half_of_the_ring():
    plan = plan_of("()+P0+P1", "()", ())
    assert [step.axes for step in plan.steps] == [(0, 1)]
    assert plan.received_bytes(itemsize=4) == 8


def legal_steps(dims, partial, shape, lengths, usable):
    """Every step that the contract of `Step` allows, as (received elements, spec after).

    Written from the definitions alone, for sums only, and without any of `reshard`'s restrictions
    but that it uses no axis outside `usable`.
    """

    def count(axes):
        return math.prod(lengths[axis] for axis in axes)

    def changed(*changes):
        after = list(dims)
        for dim, axes in changes:
            after[dim] = axes
        if all(n % count(axes) == 0 for n, axes in zip(shape, after, strict=True)):
            return tuple(after)
        return None

    local = math.prod(n // count(axes) for n, axes in zip(shape, dims, strict=True))
    found = []
    for dim, axes in enumerate(dims):
        for cut in range(len(axes)):
            head, tail = axes[:cut], axes[cut:]
            n = count(tail)
            found.append(((n - 1) * local, changed((dim, head)), partial))
            for other in set(range(len(dims))) - {dim}:
                after = changed((dim, head), (other, dims[other] + tail))
                found.append((local - local // n, after, partial))
    idle = usable - partial - {axis for axes in dims for axis in axes}
    for received, axes_from in ((0, idle), (1, partial)):
        for size in range(1, len(axes_from) + 1):
            for axes in itertools.permutations(sorted(axes_from), size):
                share = received * (local - local // count(axes))
                rest = partial - set(axes)
                found += [
                    (share, changed((dim, held + axes)), rest) for dim, held in enumerate(dims)
                ]
                if received:
                    found.append((2 * share, dims, rest))
    return [(cost, (after, rest)) for cost, after, rest in found if after is not None]


def cheapest_prices(src, shape, mesh, usable):
    """(received elements, steps) of the cheapest plan from `src` to every spec, by Dijkstra."""
    start = (src.dims, frozenset(p.axis for p in src.partial))
    prices = {}
    queue = [((0, 0), 0, start)]
    number = itertools.count(1)
    while queue:
        price, _, state = heapq.heappop(queue)
        if state in prices:
            continue
        prices[state] = price
        for cost, after in legal_steps(*state, shape, mesh.shape, usable):
            if after not in prices:
                heapq.heappush(queue, ((price[0] + cost, price[1] + 1), next(number), after))
    return prices


def check_prices(src, shape, mesh):
    def used(spec):
        return {*spec.axes, *(p.axis for p in spec.partial)}

    by_usable = {}
    for dst in every_spec(mesh, len(shape), partial=False):
        layouts = Layout(shape, mesh, src), Layout(shape, mesh, dst)
        if not all(layout.is_even for layout in layouts):
            continue
        usable = frozenset(used(src) | used(dst))
        if usable not in by_usable:
            by_usable[usable] = cheapest_prices(src, shape, mesh, usable)
        plan = reshard(*layouts)
        price = (plan.received_bytes(1), len(plan.steps))
        assert price == by_usable[usable][dst.dims, frozenset()], str(plan)


@pytest.mark.parametrize(
    ("mesh", "shape"),
    [
        (SMALL, (4, 4)),
        (SMALL, (2, 4, 2)),
        (TALL, (8, 8)),
        (TALL, (4, 2, 8)),
        (Mesh((1, 4), ("x", "y")), (4, 4)),
        (Mesh((2, 1, 3), ("x", "y", "z")), (6, 6)),
        (CUBE, (8, 8)),
        (CUBE, (4, 2, 8)),
    ],
    ids=lambda value: "x".join(map(str, getattr(value, "shape", value))),
)
def test_no_plan_is_cheaper_than_the_one_found(mesh, shape):
    for src in every_spec(mesh, len(shape)):
        check_prices(src, shape, mesh)


def test_a_detour_is_taken_where_it_saves_bytes():
    plan = plan_of("S01R", "S1R")
    assert "all_to_all" in [step.kind for step in plan.steps]
    gather_and_slice = 48
    assert plan.received_bytes(itemsize=1) < gather_and_slice


@given(layout_pairs())
def test_peak_is_the_largest_input_and_output_of_a_step(pair):
    plan = reshard(*pair)
    held = [layout.local_bytes(4) for layout in (plan.src, *(step.dst for step in plan.steps))]
    assert plan.peak_bytes(4) == max(map(sum, itertools.pairwise(held)), default=held[0])


@pytest.mark.parametrize(
    ("src", "dst", "peak"),
    [
        ("S0R", "S0R", 32),
        ("S0R", "RR", 32 + 64),
        ("S0R", "RS0", 32 + 32),
        ("RR+P0", "S0R", 64 + 32),
    ],
)
def test_peak_bytes_of_one_step(src, dst, peak):
    assert plan_of(src, dst).peak_bytes(itemsize=1) == peak


@pytest.mark.parametrize("mesh", MESHES, ids=["2x2", "4x2", "2x2x2"])
def test_one_all_to_all_is_the_plan_wherever_it_is_enough(mesh):
    for src in every_spec(mesh, 2):
        for dim, axes in enumerate(src.dims):
            for cut in range(len(axes)):
                dims = [axes[:cut], src.dims[1 - dim] + axes[cut:]]
                dst = Spec(tuple(dims if dim == 0 else reversed(dims)), src.partial)
                plan = reshard(*(Layout((mesh.size,) * 2, mesh, spec) for spec in (src, dst)))
                assert [(s.kind, s.axes) for s in plan.steps] == [("all_to_all", axes[cut:])]


@pytest.mark.parametrize("mesh", MESHES, ids=["2x2", "4x2", "2x2x2"])
def test_the_whole_is_never_gathered_between_specs_with_an_axis_in_common(mesh):
    for src, dst in itertools.permutations(every_spec(mesh, 2, partial=False), 2):
        if set(src.axes) & set(dst.axes):
            plan = reshard(*(Layout((mesh.size,) * 2, mesh, spec) for spec in (src, dst)))
            assert Spec.replicated(2) not in [step.dst.spec for step in plan.steps], str(plan)


def test_gathers_where_no_even_split_allows_an_all_to_all():
    assert [step.kind for step in plan_of("S0R", "RS0").steps] == ["all_to_all"]
    plan = plan_of("S01R", "S10R", (4, 1))
    assert [step.kind for step in plan.steps] == ["all_gather", "slice"]


# What must not matter


@given(layout_pairs(), st.data())
def test_names_and_device_ids_change_no_step(pair, data):
    mesh = pair[0].mesh
    ids = data.draw(st.permutations(range(mesh.size)))
    other = Mesh(mesh.shape, tuple(f"other_{name}" for name in mesh.axis_names), tuple(ids))
    plan = reshard(*pair)
    moved = reshard(*(Layout(layout.shape, other, layout.spec) for layout in pair))
    assert str(moved) == str(plan)
    assert moved.received_bytes(4) == plan.received_bytes(4)
    whole = np.arange(math.prod(plan.src.shape)).reshape(plan.src.shape)
    held = simulate(plan, shard(plan.src, whole))
    held_by_others = simulate(moved, shard(moved.src, whole))
    for device, renamed in zip(mesh.device_ids, ids, strict=True):
        np.testing.assert_array_equal(held_by_others[renamed], held[device])


@given(layout_pairs(), st.integers(2, 5))
def test_more_elements_take_the_same_steps_and_bytes_in_proportion(pair, factor):
    mesh = pair[0].mesh
    shape = tuple(n * mesh.size for n in pair[0].shape)
    plan = reshard(*(Layout(shape, mesh, layout.spec) for layout in pair))
    longer = tuple(n * factor for n in shape)
    larger = reshard(*(Layout(longer, mesh, layout.spec) for layout in pair))
    assert str(larger) == str(plan)
    assert larger.received_bytes(4) == plan.received_bytes(4) * factor ** len(shape)


def test_plans_print_one_line_a_step():
    assert str(plan_of("RR+P0", "S0R")) == "reduce_scatter sum dim 0 over axis 0: RR+P0 -> S0R"
    assert str(plan_of("S0S1", "S01R")) == "all_to_all dim 1 to dim 0 over axis 1: S0S1 -> S01R"
    assert str(plan_of("RR", "S01R")) == "slice dim 0 over axis 0,1: RR -> S01R"
    assert str(plan_of("RR", "RR")) == "nothing to do: RR"


# Errors


def test_rejects_another_shape():
    src, dst = Layout((4,), SMALL, Spec.parse("R")), Layout((8,), SMALL, Spec.parse("R"))
    with pytest.raises(ReshardError, match=r"keeps the tensor's shape; got \(4,\) as source"):
        reshard(src, dst)


def test_rejects_another_mesh():
    src, dst = Layout((8,), SMALL, Spec.parse("R")), Layout((8,), TALL, Spec.parse("R"))
    with pytest.raises(ReshardError, match=r"stays on one mesh \(crossmesh moves between meshes\)"):
        reshard(src, dst)


@pytest.mark.parametrize(("src", "dst"), [("S0R", "RR"), ("RR", "S0R")])
def test_rejects_uneven_layouts(src, dst):
    rule = r"shards of equal size; got dims \(0,\) of shape \(5, 4\) in \(2, 1\) shards .* pad"
    with pytest.raises(UnevenLayoutError, match=rule):
        plan_of(src, dst, (5, 4))


def test_accepts_an_uneven_layout_that_stays():
    assert plan_of("S0R", "S0R", (5, 4)).steps == ()


@pytest.mark.parametrize(("src", "dst"), [("RR", "RR+P1"), ("RS1", "RR+P1"), ("RR+Pmax1", "RR+P1")])
def test_makes_no_partial_results(src, dst):
    needs = f"{src} -> {dst} needs sum over axis 1; ask for a destination without"
    with pytest.raises(ReshardError, match=re.escape(needs)):
        plan_of(src, dst)


def test_combines_no_partial_results_past_a_kind_that_stays():
    with pytest.raises(ReshardError, match="would combine sum over axis 0 before max over axis 1"):
        plan_of("RR+P0+Pmax1", "RR+Pmax1")
    check_plan(plan_of("RR+P0+Pmax1", "RR+P0"))
