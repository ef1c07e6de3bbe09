import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, LayoutError, Mesh, Spec
from shardspec.base.chunking import all_sizes, canonical, interval, runs

RULES = ("ceil", "nested", "balanced", "padded")
SIZES = st.integers(0, 40)
PARTS = st.lists(st.integers(1, 4), max_size=3).map(tuple)
LINE = Mesh((4,), ("x",))


def chunks(elements, count):
    """As `torch.chunk`, padded with empty ones."""
    step = math.ceil(len(elements) / count)
    return [elements[i * step : (i + 1) * step] for i in range(count)]


def pieces(n, chunking, parts):
    """The elements of every piece of a dim of `n`, major to minor, as plainly as can be said."""
    elements = list(range(n))
    if chunking == "nested":
        found = [elements]
        for count in parts:
            found = [chunk for piece in found for chunk in chunks(piece, count)]
    elif chunking == "balanced":
        found = [elements]
        for count in parts:
            found = [list(map(int, piece)) for of in found for piece in np.array_split(of, count)]
    elif chunking in ("ceil", "padded"):
        found = chunks(elements, math.prod(parts))
    else:
        found = [list(map(int, piece)) for piece in np.split(elements, np.cumsum(chunking)[:-1])]
    return found


@st.composite
def cuts(draw):
    n, parts = draw(SIZES), draw(PARTS)
    chunking = draw(st.sampled_from([*RULES, None]))
    if chunking is None:
        bounds = sorted(draw(st.integers(0, n)) for _ in range(math.prod(parts) - 1))
        chunking = tuple(b - a for a, b in itertools.pairwise([0, *bounds, n]))
    return n, chunking, parts


@given(cuts())
def test_sizes_are_those_of_the_naive_pieces(case):
    assert list(all_sizes(*case)) == [len(piece) for piece in pieces(*case)]


@given(cuts())
def test_intervals_are_the_naive_pieces(case):
    n, chunking, parts = case
    places = itertools.product(*map(range, parts))
    for place, piece in zip(places, pieces(*case), strict=True):
        start, stop = interval(n, chunking, list(zip(parts, place, strict=True)))
        assert 0 <= start <= stop <= n
        assert list(range(start, stop)) == piece


@given(cuts(), st.data())
def test_runs_join_the_pieces_that_a_device_keeps(case, data):
    n, chunking, parts = case
    level = [data.draw(st.sampled_from([None, *range(count)])) for count in parts]
    places = itertools.product(*map(range, parts))
    kept = [
        element
        for place, piece in zip(places, pieces(*case), strict=True)
        if all(of is None or of == at for of, at in zip(level, place, strict=True))
        for element in piece
    ]
    found = runs(n, chunking, list(zip(parts, level, strict=True)))
    assert [e for start, stop in found for e in range(start, stop)] == kept
    assert all(stop < start for (_, stop), (start, _) in itertools.pairwise(found))


@given(cuts())
def test_canonical_rules_cut_alike_and_equal_cuts_have_one_rule(case):
    n, chunking, parts = case
    rule = canonical(n, chunking, parts)
    assert all_sizes(n, rule, parts) == all_sizes(n, chunking, parts)
    assert canonical(n, rule, parts) == rule
    if chunking != "padded":
        assert canonical(n, all_sizes(n, chunking, parts), parts) == rule


@given(SIZES, PARTS)
def test_padding_stays_unless_the_pieces_are_equal(n, parts):
    even = n % math.prod(parts) == 0
    assert canonical(n, "padded", parts) == ("ceil" if even else "padded")


def test_levels_differ_from_cutting_at_once():
    assert all_sizes(9, "ceil", (2, 2)) == (3, 3, 3, 0)
    assert all_sizes(9, "nested", (2, 2)) == (3, 2, 2, 2)
    assert all_sizes(10, "balanced", (2, 3)) == (2, 2, 1, 2, 2, 1)
    assert all_sizes(10, "balanced", (6,)) == (2, 2, 2, 2, 1, 1)


@pytest.mark.parametrize("rule", RULES)
def test_cuts_are_exact_where_floats_are_not(rule):
    n, places = 2**61 + 3, [[(3, i), (7, j)] for i in range(3) for j in range(7)]
    bounds = [interval(n, rule, levels) for levels in places]
    assert [bounds[0][0], bounds[-1][1]] == [0, n]
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(bounds))
    sizes = [stop - start for start, stop in bounds]
    if rule == "balanced":
        assert max(sizes) - min(sizes) == 1
    else:
        assert sizes[0] == -(-n // 21)


@pytest.mark.parametrize("rule", RULES)
def test_splits_into_many_more_pieces_than_elements_list_few(rule):
    first, second = (runs(3, rule, [(10**15, None), (2, i)]) for i in range(2))
    by_level = rule in ("nested", "balanced")  # each piece of one element is device 0's
    assert first == (((0, 3),) if by_level else ((0, 1), (2, 3)))
    assert second == (() if by_level else ((1, 2),))


@pytest.mark.parametrize("chunking", ["even", "", None, 3, 2.5, (1.5, 2.5), (5, -1), ("a", "b")])
def test_rejects_what_is_no_rule(chunking):
    with pytest.raises(LayoutError, match=r"one of the rules \('ceil'.* or by explicit sizes >= 0"):
        Layout((4,), LINE, Spec.parse("S0"), (chunking,))


def test_rejects_an_unknown_rule_for_all_dims_of_a_scalar():
    with pytest.raises(LayoutError, match="one of the rules"):
        Layout((), LINE, Spec.parse("()"), "even")


@pytest.mark.parametrize("sizes", [(1, 1, 2), (1, 1, 1, 2), (4,), ()])
def test_rejects_sizes_that_do_not_fit_the_dim(sizes):
    with pytest.raises(
        LayoutError, match=r"one for each of the 4 parts, and add up to the dim's 4"
    ):
        Layout((4,), LINE, Spec.parse("S0"), (sizes,))


@pytest.mark.parametrize("rule", ["nested", "balanced"])
def test_rejects_to_compare_a_million_unequal_pieces(rule):
    with pytest.raises(LayoutError, match=r"of unequal pieces has at most 1048576 of them"):
        Layout((7,), LINE, Spec.parse("S[999999]0"), rule)
    assert Layout((7,), LINE, Spec.parse("S[999999]0")).local_shape(0) == (2,)
