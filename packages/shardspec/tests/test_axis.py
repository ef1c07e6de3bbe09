import copy
import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardspec import SpecError, Split, SubAxis
from shardspec.base.axis import merged, overlap

FACTORS = st.integers(2, 4)
PARTS = st.builds(
    SubAxis, st.integers(0, 2), st.sampled_from([1, 2, 3, 4, 6]), st.sampled_from([2, 3, 4])
)
ENTRIES = st.lists(st.one_of(st.integers(0, 3), PARTS, st.builds(Split, st.integers(1, 3))))


@given(ENTRIES)
def test_merging_is_done_once_and_makes_nothing_longer(entries):
    short = merged(entries)
    assert merged(short) == short
    assert len(short) <= len(entries)
    assert not short or not isinstance(short[-1], Split)


@given(st.lists(FACTORS, min_size=1, max_size=4), st.integers(1, 3))
def test_adjacent_parts_of_an_axis_are_one_part(sizes, pre):
    parts, at = [], pre
    for size in sizes:
        parts.append(SubAxis(0, at, size))
        at *= size
    assert merged(parts) == (SubAxis(0, pre, at // pre),)
    if len(parts) > 1:
        assert merged(parts[::-1]) == tuple(parts[::-1])


@pytest.mark.parametrize(
    ("entries", "short"),
    [
        ((Split(1), 0), (0,)),
        ((0, Split(3)), (0,)),
        ((Split(2), Split(3), 0), (Split(6), 0)),
        ((SubAxis(0, 1, 2), Split(1), SubAxis(0, 2, 2)), (SubAxis(0, 1, 4),)),
        ((SubAxis(0, 1, 2), Split(2), SubAxis(0, 2, 2)),) * 2,
        ((SubAxis(0, 1, 2), SubAxis(1, 2, 2)),) * 2,
        ((0, 1), (0, 1)),
        ((), ()),
    ],
)
def test_what_merging_joins_and_drops(entries, short):
    assert merged(entries) == short


@given(st.lists(PARTS, max_size=3))
def test_overlap_means_that_no_mesh_has_the_axes_side_by_side(parts):
    """Side by side: an axis of some length whose coordinate is made of the parts' coordinates."""
    fits = True
    for axis in {part.axis for part in parts}:
        of_axis = [part for part in parts if part.axis == axis]
        length = int(np.lcm.reduce([part.pre * part.size for part in of_axis]))
        seen = {
            tuple(c // (length // (p.pre * p.size)) % p.size for p in of_axis)
            for c in range(length)
        }
        # Independent coordinates, each of a run of digits of one mixed-radix number.
        nested = all(b.pre % (a.pre * a.size) == 0 for a, b in itertools.pairwise(sorted(of_axis)))
        fits = fits and len(seen) == np.prod([p.size for p in of_axis]) and nested
    assert overlap(parts) is not fits


@pytest.mark.parametrize(
    ("axes", "overlaps"),
    [
        ((0, 1), False),
        ((0, 0), True),
        ((0, SubAxis(0, 1, 2)), True),
        ((1, SubAxis(0, 1, 2)), False),
        ((SubAxis(0, 1, 2), SubAxis(0, 2, 2)), False),
        ((SubAxis(0, 2, 2), SubAxis(0, 1, 2)), False),
        ((SubAxis(0, 1, 4), SubAxis(0, 2, 2)), True),
        ((SubAxis(0, 1, 2), SubAxis(0, 1, 2)), True),
    ],
)
def test_axes_that_overlap(axes, overlaps):
    assert overlap(axes) is overlaps


def test_numpy_integers_become_ints():
    axis, split = SubAxis(np.int64(1), np.int8(2), np.uint16(4)), Split(np.int32(3))
    assert (axis, split) == (SubAxis(1, 2, 4), Split(3))
    assert {type(n) for n in (axis.axis, axis.pre, axis.size, split.factor)} == {int}


def test_values_are_hashable_and_can_be_copied():
    for value in (SubAxis(0, 2, 4), Split(3)):
        assert eval(repr(value)) == value
        assert pickle.loads(pickle.dumps(value)) == copy.deepcopy(value) == value
        assert hash(copy.copy(value)) == hash(value)


@pytest.mark.parametrize(
    "fields",
    [
        (-1, 1, 2),
        (0, 0, 2),
        (0, 1, 1),
        (0, 1, 2.0),
        (True, 1, 2),
        ("x", 1, 2),
        (None, 1, 2),
        (0, 1, 2**63),
    ],
)
def test_rejects_what_is_no_part_of_an_axis(fields):
    with pytest.raises(SpecError, match="axis index >= 0, a pre-size >= 1 and a size >= 2; got ax"):
        SubAxis(*fields)


@pytest.mark.parametrize("factor", [0, -2, 1.5, False, "2", None, 2**63, [2]])
def test_rejects_a_split_into_no_number_of_pieces(factor):
    with pytest.raises(SpecError, match=r"from 1 to 2\*\*63 - 1 pieces; got factor="):
        Split(factor)


def test_a_message_survives_numbers_that_python_does_not_print():
    with pytest.raises(SpecError, match="got factor=numbers too long to print"):
        Split(10**5000)
