import heapq
import itertools
import math
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardspec import (
    WHOLE_AXES,
    Layout,
    Mesh,
    ReshardError,
    Spec,
    UnevenLayoutError,
    reshard,
    reshard_whole_axes,
)
from shardspec.testing import check_plan, every_spec, layout_pairs

MESHES = [Mesh((2, 2), ("x", "y")), Mesh((4, 2), ("x", "y")), Mesh((2, 2, 2), ("x", "y", "z"))]
SMALL, TALL, CUBE = MESHES
NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
EVERY_MESH = pytest.mark.parametrize("mesh", MESHES, ids=["2x2", "4x2", "2x2x2"])


def plan_of(src, dst, shape=(8, 8), mesh=SMALL):
    return reshard_whole_axes(*(Layout(shape, mesh, Spec.parse(text)) for text in (src, dst)))


def used(spec):
    return {*spec.axes, *spec.partial_axes}


def pairs_of(mesh, rank):
    for src, dst in itertools.product(every_spec(mesh, rank), repeat=2):
        if set(dst.partial) <= set(src.partial):
            yield tuple(Layout((mesh.size,) * rank, mesh, spec) for spec in (src, dst))


# The plans


@pytest.mark.parametrize(("mesh", "rank"), [(SMALL, 1), (SMALL, 2), (TALL, 1), (TALL, 2)])
def test_every_pair_is_resharded_by_steps_of_whole_axes(mesh, rank):
    for pair in pairs_of(mesh, rank):
        plan = reshard_whole_axes(*pair)
        check_plan(plan)
        assert WHOLE_AXES.issuperset(step.kind for step in plan.steps)
        assert all(step.dst.spec.is_plain and step.dst.is_even for step in plan.steps)
        assert all(step.dim is not None or step.kind == "all_reduce" for step in plan.steps)


@given(layout_pairs(mixed_kinds=True))
def test_any_pair_that_can_be_resharded_is_so_by_steps_of_whole_axes(pair):
    try:
        reshard(*pair)
    except ReshardError:
        with pytest.raises(ReshardError, match="do not commute"):
            reshard_whole_axes(*pair)
    else:
        check_plan(reshard_whole_axes(*pair))


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
        ("RR+Pmax0", "S0R", ["all_reduce", "slice"], 2 * 48),  # jax.lax scatters sums only
    ],
)
def test_autoddl_table_2(src, dst, kinds, received):
    plan = plan_of(src, dst, mesh=Mesh((4,), ("x",)))
    assert [step.kind for step in plan.steps] == kinds
    assert plan.received_bytes(itemsize=1) == received


def test_an_all_reduced_scalar_is_received_once_in_each_half_of_the_ring():
    plan = plan_of("()+P0+P1", "()", ())
    assert [step.axes for step in plan.steps] == [(0, 1)]
    assert plan.received_bytes(itemsize=4) == 8


def test_partial_results_of_two_kinds_combine_from_the_last_axis_to_the_first():
    plan = plan_of("RR+P0+Pmax1", "S0R", (2, 4))
    check_plan(plan)
    assert [step.reduction for step in plan.steps] == ["max", "sum"]


@pytest.mark.parametrize(("src", "dst"), [("R+P0+Pavg1", "R+Pavg1"), ("R+Pavg0+P1", "R+P1")])
def test_sums_and_averages_combine_past_each_other(src, dst):
    plan = plan_of(src, dst, (4,))
    check_plan(plan)
    assert [step.kind for step in plan.steps] == ["all_reduce"]


def test_a_detour_is_taken_where_it_saves_bytes():
    plan = plan_of("S01R", "S1R")
    assert "all_to_all" in [step.kind for step in plan.steps]
    gather_and_slice = 48
    assert plan.received_bytes(itemsize=1) < gather_and_slice


@EVERY_MESH
def test_one_all_to_all_is_the_plan_wherever_it_is_enough(mesh):
    for src in every_spec(mesh, 2):
        for dim, axes in enumerate(src.dims):
            for cut in range(len(axes)):
                dims = [axes[:cut], src.dims[1 - dim] + axes[cut:]]
                dst = Spec(tuple(dims if dim == 0 else reversed(dims)), src.partial)
                pair = (Layout((mesh.size,) * 2, mesh, spec) for spec in (src, dst))
                plan = reshard_whole_axes(*pair)
                assert [(s.kind, s.axes) for s in plan.steps] == [("all_to_all", axes[cut:])]


@EVERY_MESH
def test_the_whole_is_never_gathered_between_specs_with_an_axis_in_common(mesh):
    specs = list(every_spec(mesh, 2, partial=False))
    for src, dst in itertools.product(specs if NIGHTLY else specs[:: 1 + len(specs) // 20], specs):
        if src != dst and set(src.axes) & set(dst.axes):
            pair = (Layout((mesh.size,) * 2, mesh, spec) for spec in (src, dst))
            plan = reshard_whole_axes(*pair)
            assert Spec.replicated(2) not in [step.dst.spec for step in plan.steps], str(plan)


def test_gathers_where_no_even_split_allows_an_all_to_all():
    assert [step.kind for step in plan_of("S0R", "RS0").steps] == ["all_to_all"]
    plan = plan_of("S01R", "S10R", (4, 1))
    assert [step.kind for step in plan.steps] == ["all_gather", "slice"]


# That none is cheaper


def legal_steps(dims, partial, shape, lengths, usable):
    """Every step that the contract of `Step` allows, as (received elements, spec after).

    Written from the definitions alone, for sums only, and without any of the search's restrictions
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
    by_usable = {}
    for dst in every_spec(mesh, len(shape), partial=False):
        layouts = Layout(shape, mesh, src), Layout(shape, mesh, dst)
        if not all(layout.is_even for layout in layouts):
            continue
        usable = frozenset(used(src) | used(dst))
        if usable not in by_usable:
            by_usable[usable] = cheapest_prices(src, shape, mesh, usable)
        plan = reshard_whole_axes(*layouts)
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
    sources = list(every_spec(mesh, len(shape)))
    for src in sources if NIGHTLY else sources[:: 1 + len(sources) // 15]:
        check_prices(src, shape, mesh)


@pytest.mark.parametrize(("mesh", "rank"), [(SMALL, 2), (TALL, 2), (CUBE, 1)])
def test_no_way_through_a_third_spec_of_the_same_axes_is_cheaper(mesh, rank):
    pairs = list(pairs_of(mesh, rank))
    price = {pair: reshard_whole_axes(*pair).received_bytes(1) for pair in pairs}
    ends = {}
    for src, dst in pairs:
        ends.setdefault(src, []).append(dst)
    for src, via in pairs:
        for dst in ends[via]:
            if used(via.spec) <= used(src.spec) | used(dst.spec) and (src, dst) in price:
                assert price[src, dst] <= price[src, via] + price[via, dst], f"{src}, {via}, {dst}"


@given(layout_pairs(), st.sampled_from([1, 2, 1000]))
def test_a_limit_on_memory_is_kept_and_costs_bytes_only(pair, times):
    largest = max(layout.local_bytes(1) for layout in pair)
    try:
        plan = reshard(*pair, collectives=WHOLE_AXES, max_local_elements=largest * times)
    except ReshardError:
        assert times < 1000, "with enough memory, all can be gathered"
    else:
        check_plan(plan)
        assert plan.largest_bytes(1) <= largest * times
        assert plan.received_bytes(1) >= reshard_whole_axes(*pair).received_bytes(1)


@pytest.mark.parametrize("mesh", [SMALL, TALL], ids=["2x2", "4x2"])
def test_a_search_by_the_price_of_bytes_finds_the_fewest_bytes(mesh):
    for pair in pairs_of(mesh, 2):
        by_price = reshard(
            *pair,
            collectives=WHOLE_AXES,
            cost=lambda step: step.received_bytes(1),
            max_local_elements=math.prod(pair[0].shape),
        )
        assert by_price.received_bytes(1) == reshard_whole_axes(*pair).received_bytes(1)


@given(pair=layout_pairs())
def test_a_search_by_a_price_that_gives_up_leaves_the_plan_with_the_fewest_bytes(pair):
    def planned(**cost):
        whole = max(1, math.prod(pair[0].shape))
        return reshard(*pair, collectives=WHOLE_AXES, max_local_elements=whole, **cost)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardspec.resharding.search_view.cheapest_moves", lambda *_: None)
        assert planned(cost=lambda step: step.received_bytes(1)) == planned()


# Errors


@pytest.mark.parametrize(("src", "dst"), [("S0R", "RR"), ("RR", "S0R")])
def test_rejects_uneven_layouts(src, dst):
    rule = r"shards of equal size.*got dims \(0,\) of shape \(5, 4\) in \(2, 1\) shards .* pad"
    with pytest.raises(UnevenLayoutError, match=rule):
        plan_of(src, dst, (5, 4))


def test_names_dims_of_explicit_sizes_that_the_parts_divide():
    src = Layout((4,), SMALL, Spec.parse("S0"), ((1, 3),))
    with pytest.raises(UnevenLayoutError, match=r"got dims \(0,\) of shape \(4,\)"):
        reshard_whole_axes(src, Layout((4,), SMALL, Spec.parse("R")))


def test_accepts_an_uneven_layout_that_stays():
    assert plan_of("S0R", "S0R", (5, 4)).steps == ()


@pytest.mark.parametrize("spec", ["S[2]0R", "S(0:(1)2)R"])
def test_rejects_strides_and_parts_of_axes(spec):
    with pytest.raises(ReshardError, match="layouts of whole axes, unstrided; got S"):
        plan_of(spec, "RR", mesh=TALL)


@pytest.mark.parametrize(("src", "dst"), [("RR", "RR+P1"), ("RS1", "RR+P1"), ("RR+Pmax1", "RR+P1")])
def test_makes_no_partial_results(src, dst):
    needs = f"made by `fill` only; {src} -> {dst} needs sum over axis 1; allow it, or ask for a"
    with pytest.raises(ReshardError, match=re.escape(needs)):
        plan_of(src, dst)
