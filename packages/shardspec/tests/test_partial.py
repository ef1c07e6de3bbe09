import copy
import functools
import itertools
import operator
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from shardspec import Partial, SpecError, SubAxis
from shardspec.refine.shards import combine

KINDS = ("sum", "max", "min", "product", "avg")
NUMBERS = st.integers(-3, 3).map(Fraction)
DEVICES, ELEMENTS = 2, 2
UNSHRUNK = settings(phases=[Phase.generate])


def arrays(devices=DEVICES):
    """What each of some devices holds: exact numbers, as averages are taken."""
    elements = st.lists(NUMBERS, min_size=ELEMENTS, max_size=ELEMENTS)
    whole = elements.map(lambda row: np.array(row, object))
    return st.lists(whole, min_size=devices, max_size=devices)


# What a device does with its part, given what other inputs there are, and what stands for them all.
OPERATIONS = {
    "slice": (st.just(None), lambda x, _: x[1:], lambda _, kind: None),
    "add": (arrays(), operator.add, lambda others, kind: combine(kind, others)),
    "multiply": (arrays(), operator.mul, lambda others, kind: combine(kind, others)),
    "add_whole": (arrays(1).map(lambda a: a * DEVICES), operator.add, lambda a, kind: a[0]),
    "scale": (NUMBERS.map(lambda x: [x] * DEVICES), operator.mul, lambda a, kind: a[0]),
    "scale_positive": (NUMBERS.map(lambda x: [abs(x)] * DEVICES), operator.mul, lambda a, _: a[0]),
}


def assert_always(strategy, holds):
    @settings(max_examples=settings().max_examples // 4)
    @given(strategy)
    def check(case):
        assert holds(case)

    check()


def commutes(kind, operation, parts, others):
    _, apply, one = OPERATIONS[operation]
    before = [apply(x, y) for x, y in zip(parts, others or [None] * DEVICES, strict=True)]
    after = apply(combine(kind, parts), one(others, kind))
    return (combine(kind, before) == after).all()


ALL = list(itertools.product(KINDS, OPERATIONS))


@pytest.mark.parametrize(("kind", "operation"), [c for c in ALL if Partial(0, c[0]).allows(c[1])])
def test_what_is_allowed_gives_the_same_before_and_after_combining(kind, operation):
    inputs = st.tuples(arrays(), OPERATIONS[operation][0])
    assert_always(inputs, lambda case: commutes(kind, operation, *case))


@pytest.mark.parametrize(
    ("kind", "operation"), [c for c in ALL if not Partial(0, c[0]).allows(c[1])]
)
def test_what_is_not_allowed_has_a_counterexample(kind, operation):
    inputs = st.tuples(arrays(), OPERATIONS[operation][0])
    case = find(inputs, lambda case: not commutes(kind, operation, *case), settings=UNSHRUNK)
    assert not commutes(kind, operation, *case)


@pytest.mark.parametrize(("a", "b"), list(itertools.product(KINDS, KINDS)))
def test_kinds_commute_if_two_axes_may_be_combined_in_any_order(a, b):
    def same(grid):
        rows = [combine(a, row) for row in grid]
        columns = [combine(b, list(column)) for column in zip(*grid, strict=True)]
        return (combine(b, rows) == combine(a, columns)).all()

    grids = st.lists(arrays(), min_size=2, max_size=2)
    if Partial(0, a).commutes_with(Partial(1, b)):
        assert_always(grids, same)
    else:
        assert not same(find(grids, lambda grid: not same(grid), settings=UNSHRUNK))


@given(st.sampled_from(KINDS), arrays(3))
def test_combining_is_what_numpy_does(kind, parts):
    numpy = {"sum": np.sum, "max": np.max, "min": np.min, "product": np.prod, "avg": np.mean}
    np.testing.assert_array_equal(combine(kind, parts), numpy[kind](np.array(parts), axis=0))


@given(
    st.sampled_from(["int8", "uint8", "int64", "uint64"]), st.integers(1, 300), st.integers(0, 9)
)
def test_averages_of_integers_are_exact_up_to_the_limits_of_their_type(dtype, count, seed):
    info = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    values = rng.integers(info.min, info.max, (count, 2), dtype, endpoint=True)
    values[::3] = info.max
    parts = list(values)
    exact = functools.reduce(operator.add, [part.astype(object) for part in parts]) // count
    found = combine("avg", parts)
    assert found.dtype == dtype
    assert found.tolist() == exact.tolist()


def test_values_are_hashable_and_can_be_copied():
    for value in (Partial(0), Partial(SubAxis(1, 2, 4), "max")):
        assert eval(repr(value)) == value
        assert pickle.loads(pickle.dumps(value)) == copy.deepcopy(value) == value
        assert hash(copy.copy(value)) == hash(value)


def test_numpy_integers_become_ints():
    assert type(Partial(np.int64(1)).axis) is int


@pytest.mark.parametrize("kind", ["mean", "SUM", "", None, 1, ["sum"]])
def test_rejects_an_unknown_reduction(kind):
    with pytest.raises(SpecError, match=r"one of \('sum', .*'avg'\); got kind="):
        Partial(0, kind)


@pytest.mark.parametrize("axis", [-1, 1.0, True, "x", None, (0,), 2**63])
def test_rejects_what_is_no_axis(axis):
    with pytest.raises(SpecError, match="an axis, an index >= 0, or a sub-axis; got axis="):
        Partial(axis)


def test_rejects_an_unknown_operation():
    with pytest.raises(SpecError, match=r"an operation is one of .*'multiply'.*; got 'divide'"):
        Partial(0).allows("divide")
