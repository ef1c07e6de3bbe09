"""The compiled module by itself: for any arguments it returns a result or raises a typed error."""

import subprocess
import sys

import numpy as np
import pytest
from crossmesh import _core
from crossmesh.testing_geometry import cells
from hypothesis import given
from hypothesis import strategies as st

BIG = 2**63 - 1

WHOLE = [[[(0, 8)]]]


@pytest.mark.parametrize(
    ("src", "dst", "message"),
    [
        (WHOLE, [[]], "all tiles have the same dims; got 0 and 1"),
        ([[[]]], WHOLE, "got a dim without an interval"),
        ([[[(-1, 2)]]], WHOLE, "rise; got -1:2 after 0"),
        (WHOLE, [[[(3, 1)]]], "rise; got 3:1 after 0"),
        ([[[(0, 2), (1, 3)]]], WHOLE, "rise; got 1:3 after 2"),
        ([[[(0, 3)]], [[(2, BIG)]]], WHOLE, f"got 0:3 and 2:{BIG} in dim 0"),
        (WHOLE, WHOLE * 2, "distinct; got number 0 again as number 1"),
        ([[[(0, 1), (2, 3)]]], WHOLE, "tiles meet in at most 1 boxes; got more"),
    ],
)
def test_cells_refuses(src, dst, message):
    with pytest.raises(ValueError, match=message):
        _core.cells(src, dst, 1)


def test_cells_takes_thousands_of_dims():
    tile = [[(0, 2)]] * 3000
    assert _core.cells([tile], [tile], 1) == [(0, 0, tile)]


JOB = (8, [0, 1], 1, True, "broadcast", 100, [])


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ((-1, *JOB[1:]), "bytes must be from 0 to .* got -1"),
        ((8, [], 1, *JOB[3:]), "got 1 of them on a path of 0"),
        ((8, [0, 1], 0, *JOB[3:]), "got 0 of them on a path of 2"),
        ((8, [0, 2], 1, *JOB[3:]), "got none for host 2"),
        ((*JOB[:4], "shout", *JOB[5:]), "there are broadcast, .*; got shout"),
        ((*JOB[:5], 0, []), "at least one chunk; got 0"),
        ((*JOB[:5], 2, [0]), "of a broadcast in one chunk"),
        ((*JOB[:5], 1, [1]), "leads to the last adder and from it"),
        ((*JOB[:5], 1, [0, 0]), "leads to the last adder and from it"),
    ],
)
def test_simulate_refuses(job, message):
    with pytest.raises(ValueError, match=message):
        _core.simulate([job], [1.0, 1.0], 0.0, False)


@pytest.mark.parametrize("rates", [[0.0], [-1.0], [float("nan")], [float("inf")]])
def test_search_and_bound_refuse_invalid_rates(rates):
    with pytest.raises(ValueError, match="a rate must be from 1e-100 to 1e100"):
        _core.search([], rates, 0.0, "broadcast", 1, 0, "greedy", True, 0, 0)
    with pytest.raises(ValueError, match="a rate must be from 1e-100 to 1e100"):
        _core.lower_bound([], rates)


A = np.zeros((3, 4), "f4")
READ_ONLY = np.zeros((3, 4), "f4")
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((A.copy(), [0], A, [0, 0], [1, 1]), "destination of shape"),
        ((A.copy(), [0, 0], A, [0], [1, 1]), "source of shape"),
        ((A.copy(), [0, 0], A, [0, 0], [1]), "inside its array"),
        (
            (A.copy(), [0, 1], A, [0, 0], [3, 4]),
            r"got start=\(0, 1\) and extent=\(3, 4\) in a destination",
        ),
        ((A.copy(), [0, 0], A, [1, 0], [3, 4]), r"in a source of shape=\(3, 4\)"),
        ((A.copy(), [0, 0], A, [-1, 0], [1, 1]), "inside its array"),
        ((A.copy(), [0, 0], A, [0, 0], [-1, 1]), "inside its array"),
        ((A.copy(), [BIG, 0], A, [0, 0], [BIG, 1]), "inside its array"),
        ((A.copy(), [0, 0], A, [0, BIG], [1, BIG]), "inside its array"),
        ((A, [0, 0], A, [0, 0], [2, 2]), "must not overlap in memory"),
        ((A.astype("i4"), [0, 0], A, [0, 0], [1, 1]), "same dtype"),
        ((A.astype("f8"), [0, 0], A, [0, 0], [1, 1]), "same dtype"),
        ((A.astype(object), [0, 0], A.astype(object), [0, 0], [1, 1]), "Python objects"),
        ((np.zeros(1, "S0"), [0], np.zeros(1, "V0"), [0], [1]), "same dtype"),
        ((np.zeros(1, "V0"), [0], np.zeros(1, "V0"), [0], [1]), "at least one byte"),
        ((READ_ONLY, [0, 0], A, [0, 0], [1, 1]), "writeable"),
    ],
)
def test_copy_box_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        _core.copy_box(*arguments)


def test_copy_box_takes_disjoint_boxes_of_one_array():
    array = np.arange(6)
    _core.copy_box(array, [0], array, [3], [3])
    assert array.tolist() == [3, 4, 5, 3, 4, 5]


@pytest.mark.parametrize("wrong", [None, "text", 1.5, object(), [[None]], 2**70])
def test_other_types_are_type_errors(wrong):
    for function, n_arguments in (
        (_core.cells, 3),
        (_core.search, 10),
        (_core.simulate, 4),
        (_core.lower_bound, 2),
        (_core.copy_box, 5),
    ):
        with pytest.raises(TypeError):
            function(*[wrong] * n_arguments)


INT = st.one_of(st.integers(-2, 5), st.sampled_from([BIG, -BIG - 1, 2**31]))
INTS = st.lists(INT, max_size=3)
TILES = st.lists(st.lists(st.lists(st.tuples(INT, INT), max_size=3), max_size=3), max_size=4)
SIZE = INT.map(abs)
SIZES = st.lists(SIZE, max_size=3)
FLOATS = st.lists(st.floats(), max_size=3)


@given(TILES, TILES, st.integers(0, 4))
def test_any_tiles_are_cells_or_a_value_error(src, dst, most_boxes):
    try:
        found = _core.cells(src, dst, most_boxes)
    except ValueError:
        return
    assert found == cells(src, dst, most_boxes)


@given(st.lists(INTS, min_size=2, max_size=2), INTS, INTS, INTS)
def test_any_box_is_copied_or_a_value_error(shapes, dst_start, src_start, extent):
    shapes = [[abs(size) % 5 for size in shape] for shape in shapes]
    dst, src = np.zeros(shapes[0], "i2"), np.ones(shapes[1], "i2")
    try:
        _core.copy_box(dst, dst_start, src, src_start, extent)
    except ValueError:
        assert not dst.any()
    else:
        assert dst.sum() == np.prod(extent)


FLOWS = st.lists(st.tuples(INT, INT, st.lists(INTS, max_size=3), INTS, st.booleans()), max_size=3)
NAMES = st.sampled_from(["broadcast", "send_recv", "global_allgather"])


@given(FLOWS, FLOATS, st.floats(), NAMES, INT, INT, st.booleans(), INT)
def test_any_flows_are_searched_or_a_value_error(
    flows, rates, latency_s, name, n, n_bytes, split, steps
):
    try:
        sends = _core.search(flows, rates, latency_s, name, n, n_bytes, "ensemble", split, 0, steps)
    except ValueError:
        return
    assert {send[0] for send in sends} == set(range(len(flows)))


@given(
    st.lists(st.tuples(INT, INTS, SIZE, st.booleans(), NAMES, INT, SIZES), max_size=3),
    FLOATS,
    st.booleans(),
)
def test_any_jobs_are_simulated_or_a_value_error(jobs, rates, together):
    try:
        runs = _core.simulate(jobs, rates, 0.0, together)
    except ValueError:
        return
    assert [end_s >= 0 for end_s, _ in runs] == [True] * len(jobs)


def test_errors_keep_no_reference_to_arguments():
    array, start, extent = A.copy(), [0, 0], [2, 2]
    tiles = [[[(0, 3)]], [[(2, 4)]]]
    arguments = (array, start, extent, tiles)
    before = [sys.getrefcount(argument) for argument in arguments]
    for _ in range(100):
        with pytest.raises(ValueError, match="overlap"):
            _core.copy_box(array, start, array, start, extent)
        with pytest.raises(ValueError, match="disjoint"):
            _core.cells(tiles, tiles, 9)
    assert [sys.getrefcount(argument) for argument in arguments] == before


def test_import_without_the_core_says_how_to_build_it():
    script = "import sys; sys.modules['crossmesh._core'] = None; import crossmesh"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300
    )
    assert result.stderr.splitlines()[-1] == (
        "ImportError: crossmesh needs its compiled core; build it with "
        "`pip install ./packages/crossmesh` "
        "(a C++17 compiler is all it needs from the system; see its README.md)"
    )
