import itertools
import math

import pytest
from hypothesis import assume, given
from shardspec import COLLECTIVES, WHOLE_AXES, Layout, Mesh, ReshardError, Spec, SubAxis, reshard
from shardspec.refine.lower_bound import (
    held_elements,
    kept_elements,
    lower_bound_elements,
    missing_elements,
)
from shardspec.refine.refine import refine
from shardspec.testing import EVERY_RULE, every_spec, layout_pairs
from shardspec.testing.plans import elements

EVEN = layout_pairs(sub_axes=True, strided=True)
UNEVEN = layout_pairs(even=False, chunking=EVERY_RULE)
PARTIAL = layout_pairs(new_partial=True, mixed_kinds=True)
EVERYTHING = layout_pairs(
    max_length=6,
    even=False,
    chunking=EVERY_RULE,
    new_partial=True,
    sub_axes=True,
    strided=True,
    mixed_kinds=True,
)
EVERY_KIND = pytest.mark.parametrize(
    "pairs",
    [EVEN, UNEVEN, PARTIAL, EVERYTHING],
    ids=["even", "uneven", "partial", "everything"],
)


def partial_parts(src, dst):
    """The mesh in parts, each with the kind of its partial results before and after.

    A part is (axis, coordinates below it, its length, kind before, kind after).
    """
    for axis, length in enumerate(src.mesh.shape):
        extents = []
        for place, layout in enumerate((src, dst)):
            for p in layout.spec.partial:
                part = p.axis if isinstance(p.axis, SubAxis) else SubAxis(p.axis, 1, max(2, length))
                if part.axis == axis and length > 1:
                    extents.append((place, part.pre, part.pre * part.size, p.kind))
        cuts = {1, length}.union(*(extent[1:3] for extent in extents))
        for low, high in itertools.pairwise(sorted(cuts)):
            kinds = [None, None]
            for place, start, stop, kind in extents:
                if start <= low and high <= stop:
                    kinds[place] = kind
            yield axis, length // high, high // low, *kinds


def messages(src, dst):
    """The bound from its definition: message by message, for each element by itself.

    Devices differ along parts of the mesh where partial results stay (and are different problems),
    are combined, or are made (where the devices of a group want an element together).
    """
    mesh, parts = src.mesh, list(partial_parts(src, dst))
    before, after = elements(src), elements(dst)
    stays, combined, group = {}, {}, {}
    for device in mesh.device_ids:
        at = mesh.coordinates(device)
        others = list(at)
        stays[device], combined[device] = [], []
        for axis, minor, length, old, new in parts:
            coordinate = at[axis] // minor % length
            if old and old == new:
                stays[device].append(coordinate)
            elif old:
                combined[device].append(coordinate)
            if new and old != new:
                others[axis] -= coordinate * minor
        group[device] = tuple(others)
    total = 0
    for _, same in itertools.groupby(sorted(mesh.device_ids, key=stays.get), key=stays.get):
        devices = list(same)
        for element in range(math.prod(src.shape)):
            holders = [device for device in devices if element in before[device]]
            wanting = {group[device] for device in devices if element in after[device]}
            different = {tuple(combined[device]) for device in holders}
            held = {group[device] for device in holders}
            if len(different) > 1:
                total += len(different) + len(wanting) - 2 + wanting.isdisjoint(held)
            else:
                total += len(wanting - held)
    return total


@EVERY_KIND
def test_held_kept_and_missing_elements_are_those_of_the_sets(pairs):
    @given(pairs)
    def check(pair):
        src, dst = pair
        before, after = elements(src), elements(dst)
        assert held_elements(src) == sum(map(len, before.values()))
        assert kept_elements(src, dst) == sum(len(before[d] & after[d]) for d in before)
        if "padded" not in dst.rules:
            assert missing_elements(src, dst) == max(len(after[d] - before[d]) for d in before)

    check()


@EVERY_KIND
def test_without_partial_results_the_bound_is_what_devices_want_and_do_not_hold(pairs):
    @given(pairs)
    def check(pair):
        src, dst = (
            Layout(layout.shape, layout.mesh, Spec(layout.spec.dims), layout.chunking)
            for layout in pair
        )
        before, after = elements(src), elements(dst)
        lacking = sum(len(after[device] - before[device]) for device in before)
        assert lower_bound_elements(src, dst) == lacking == messages(src, dst)

    check()


@EVERY_KIND
def test_the_bound_counts_messages_exactly_in_common_units_and_no_more_elsewhere(pairs):
    @given(pairs)
    def check(pair):
        try:
            plan = reshard(*pair)
        except ReshardError:
            assume(False)
        bound, expected = lower_bound_elements(*pair), messages(*pair)
        assert bound == expected if refine(*pair) else bound <= expected
        assert plan.total_bytes(1) >= expected, f"{plan}: {expected}"

    check()


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("shape", [(2, 2), (4, 2)], ids=["2x2", "4x2"])
def test_the_bound_counts_messages_for_every_pair(shape, rank):
    mesh = Mesh(shape, ("x", "y"))
    layouts = [Layout((mesh.size,) * rank, mesh, spec) for spec in every_spec(mesh, rank)]
    for src, dst in itertools.product(layouts, layouts):
        assert lower_bound_elements(src, dst) == messages(src, dst), f"{src} -> {dst}"


@given(layout_pairs(new_partial=True))
def test_no_plan_of_any_collectives_is_below_the_bound(pair):
    whole = max(1, math.prod(pair[0].shape))
    for kinds in (WHOLE_AXES, COLLECTIVES - {"exchange"}, {"all_gather", "slice", "all_reduce"}):
        try:
            plan = reshard(*pair, collectives=kinds, max_local_elements=whole)
        except ReshardError:
            continue
        assert plan.total_bytes(1) >= plan.lower_bound_bytes(1) == lower_bound_elements(*pair)


def test_a_dim_left_out_that_its_parts_do_not_divide_counts_once():
    mesh = Mesh((2, 3, 2), ("x", "y", "z"))
    src, dst = (Layout((7,), mesh, Spec.parse(text)) for text in ("S02+Pavg1", "S02"))
    # 3 partial results of each of 7 elements, which 3 devices want: a ring sends 2 and then 2.
    assert lower_bound_elements(src, dst) == messages(src, dst) == 7 * 4


@pytest.mark.parametrize(
    ("src", "dst", "expected"),
    [
        ("R+P0+P1", "R", 8 * (4 + 4 - 2)),  # all-reduce: 2 (u - 1) messages an element
        ("R+P0+P1", "S01", 8 * (4 + 1 - 2)),  # reduce-scatter: u - 1
        ("S0+P1", "S1", 8 * (2 + 2 - 2)),  # someone who wants it has a partial result
        ("S0+P1", "S0", 8 * (2 + 2 - 2)),
        ("S0", "R+P0", 0),  # each device has its own part, and the others have zeros
        ("R", "S0+P1", 0),
        ("S0", "S1", 16 - 8),  # half of what is wanted is there
    ],
)
def test_bounds_of_a_vector_on_a_square(src, dst, expected):
    mesh = Mesh((2, 2), ("x", "y"))
    layouts = [Layout((8,), mesh, Spec.parse(text)) for text in (src, dst)]
    assert lower_bound_elements(*layouts) == messages(*layouts) == expected
