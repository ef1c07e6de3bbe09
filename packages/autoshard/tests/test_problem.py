import contextlib
import copy
import gzip
import json
import math

import numpy as np
import pytest
from autoshard import AutoshardError, Problem, ProblemError, evaluate, solve
from autoshard.testing import problems
from hypothesis import given
from hypothesis import strategies as st

# a made-up instance in the contest's format: an empty interval, a repeated edge, a forbidden pair
TINY = {
    "problem": {
        "nodes": {
            "intervals": [[0, 2], [1, 3], [5, 5]],
            "costs": [[3, 1], [2], [0, 4, 5]],
            "usages": [[10, 20], [5], [9, 9, 9]],
        },
        "edges": {
            "nodes": [[0, 1], [1, 2], [1, 2]],
            "costs": [[0, 7], [1, 2, 1000000000000000000], [1, 1, 1]],
        },
        "usage_limit": 20,
    }
}


def same(a, b):
    arrays = ("node_costs", "edge_costs", "usages")
    return (a.edges, a.intervals, a.usage_limit) == (b.edges, b.intervals, b.usage_limit) and all(
        np.array_equal(x, y)
        for name in arrays
        for x, y in zip(getattr(a, name), getattr(b, name), strict=True)
    )


@given(problems())
def test_json_round_trip(problem):
    assert same(Problem.from_json(problem.to_json()), problem)


def test_reads_and_writes_the_contest_format():
    problem = Problem.from_json(json.dumps(TINY))
    assert problem.edge_costs[1].tolist() == [[1, 2, math.inf]]
    assert json.loads(problem.to_json()) == TINY


def test_evaluates_the_contest_format():
    problem = Problem.from_json(json.dumps(TINY))
    judged = evaluate(problem, (0, 0, 1))
    assert (judged.cost, judged.peak_usage, judged.peak_time, judged.feasible) == (12, 15, 1, True)
    assert not evaluate(problem, (1, 0, 0)).feasible  # 25 of 20
    assert evaluate(problem, (0, 0, 2)).cost == math.inf


def test_an_edge_of_a_node_with_itself_is_a_cost_of_the_node():
    text = json.dumps(
        {
            "problem": {
                "nodes": {"intervals": [[0, 0]], "costs": [[1, 2]], "usages": [[0, 0]]},
                "edges": {"nodes": [[0, 0]], "costs": [[5, 9, 9, 6]]},
            }
        }
    )
    assert Problem.from_json(text).node_costs[0].tolist() == [6, 8]


def arrays(*rows):
    return tuple(np.array(row, dtype=float) for row in rows)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((arrays([1.0]), (), (), (), ()), "usages and an interval"),
        ((arrays([]), (), (), arrays([]), ((0, 0),)), "at least one strategy"),
        ((arrays([math.nan]), (), (), arrays([0.0]), ((0, 0),)), "costs are numbers or inf"),
        ((arrays([0.0]), (), (), arrays([-1.0]), ((0, 0),)), "finite and >= 0"),
        ((arrays([0.0]), ((0, 0),), arrays([[0.0]]), arrays([0.0]), ((0, 0),)), "two different"),
        ((arrays([0.0]), ((0, 1),), (), arrays([0.0]), ((0, 0),)), "every edge has costs"),
        (
            (
                arrays([0.0], [0.0]),
                ((0, 1),),
                arrays([[0.0, 1.0]]),
                arrays([0.0], [0.0]),
                ((0, 0), (0, 0)),
            ),
            "a row for each strategy",
        ),
    ],
)
def test_rejects_parts_that_do_not_fit(fields, message):
    with pytest.raises(ProblemError, match=message):
        Problem(*fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edges": {"nodes": [[0, 1, 2]], "costs": [[0]]}}, "joins two nodes"),
        ({"edges": {"nodes": [[0, 9]], "costs": [[0]]}}, "does not fit its nodes"),
        ({"edges": {}}, "IOPDDL JSON has"),
    ],
)
def test_rejects_json_that_is_not_a_problem(change, message):
    with pytest.raises(ProblemError, match=message):
        Problem.from_json(json.dumps({"problem": TINY["problem"] | change}))


@pytest.mark.parametrize(
    ("choice", "message"),
    [((0,), "one strategy for each node"), ((0, 0, 3), "has strategies 0 to 2")],
)
def test_evaluate_rejects_choices_that_are_none(choice, message):
    with pytest.raises(ProblemError, match=message):
        evaluate(Problem.from_json(json.dumps(TINY)), choice)


def two_nodes(**change):
    """Two nodes with an edge, some of its fields changed."""
    fields = {
        "node_costs": ([0, 1], [2, 3]),
        "edges": ((0, 1),),
        "edge_costs": ([[0, 1], [2, 3]],),
        "usages": ([1, 1], [1, 1]),
        "intervals": ((0, 1), (0, 1)),
    }
    return Problem(**fields | change)


def test_lists_and_whole_numbers_are_kept_as_float64():
    problem = two_nodes(usages=(np.array([1, 2]), [10**30, 1]))
    arrays = problem.node_costs + problem.edge_costs + problem.usages
    assert {array.dtype for array in arrays} == {np.dtype(np.float64)}
    assert solve(problem).objective == 2.0


def test_an_edges_table_of_float64_is_not_copied():
    table = np.zeros((2, 2))
    problem = two_nodes(edges=((0, 1), (1, 0)), edge_costs=(table, table))
    assert problem.edge_costs[0] is problem.edge_costs[1] is table


def test_an_interval_that_ends_before_it_begins_is_empty():
    problem = two_nodes(intervals=((5, 1), (3, 3)), usage_limit=0)
    assert evaluate(problem, (0, 0)).peak_usage == 0.0
    assert solve(problem).objective == 2.0


def test_pairs_may_repeat_and_turn_around():
    twice = two_nodes(edges=((0, 1), (1, 0)), edge_costs=([[9, 1], [2, 3]], [[9, 2], [1, 3]]))
    assert solve(twice).objective == evaluate(twice, (0, 1)).cost == 5.0


HUGE = [1e308, 1e308]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"node_costs": ([-math.inf, 0], [0, 0])}, r"numbers or inf.*node 0 has costs \[-inf, 0.0"),
        ({"node_costs": (["1", 0], [0, 0])}, r"node_costs are arrays of numbers; node 0 has \['1'"),
        ({"node_costs": ([[0], [0, 1]], [0, 0])}, "node_costs are arrays of numbers; node 0 has"),
        ({"node_costs": ([10**400, 0], [0, 0])}, "node_costs are arrays of numbers; node 0 has"),
        ({"node_costs": ([None, 0], [0, 0])}, "node_costs are arrays of numbers; node 0 has"),
        ({"node_costs": ([1j, 0], [0, 0])}, "node_costs are arrays of numbers; node 0 has"),
        ({"node_costs": 3}, "node_costs has an entry for each node or edge; got 3"),
        ({"node_costs": (HUGE, HUGE)}, "largest of the costs, as many times"),
        ({"usages": (HUGE, HUGE)}, "largest of the usages, as many times"),
        ({"usages": ([math.inf, 0], [0, 0])}, r"finite and >= 0; .* and usages \[inf, 0.0"),
        ({"edge_costs": ([[math.nan, 0], [0, 0]],)}, r"numbers or inf; edge \(0, 1\) has \[\[nan"),
        ({"edge_costs": ([[-math.inf, 0], [0, 0]],)}, r"numbers or inf; edge \(0, 1\)"),
        ({"edges": ((0,),)}, r"an edge joins two nodes.*; got \(0,\)"),
        ({"edges": ((0, 1, 1),)}, r"an edge joins two nodes.*; got \(0, 1, 1\)"),
        ({"edges": ((0, 1.0),)}, r"an edge joins two nodes.*; got \(0, 1.0\)"),
        ({"edges": ((0, -1),)}, r"an edge joins two different nodes of 2; got \(0, -1\)"),
        ({"edges": None}, "edges has an entry for each node or edge; got None"),
        ({"intervals": ((0.5, 1), (0, 1))}, r"an interval is two whole numbers.*got \(0.5, 1\)"),
        ({"intervals": ((0, 2**63), (0, 1))}, r"times are -2\*\*62 to 2\*\*62; node 0 has"),
        ({"usage_limit": math.nan}, "a usage limit is a number.*; got usage_limit=nan"),
        ({"usage_limit": "x"}, "a usage limit is a number.*; got usage_limit='x'"),
        ({"usage_limit": 10**400}, "a usage limit is a number.*; got usage_limit=10"),
    ],
)
def test_rejects_what_is_no_problem_with_the_rule_and_what_was_given(change, message):
    with pytest.raises(ProblemError, match=message):
        two_nodes(**change)


def test_times_as_far_away_as_they_may_be_are_solved():
    far = ((-(2**62), 2**62), (2**62 - 1, 2**62))
    assert evaluate(two_nodes(intervals=far), (0, 0)).peak_time == 2**62 - 1
    assert solve(two_nodes(intervals=far, usage_limit=2)).objective == 2.0


def test_no_choice_keeps_a_negative_limit():
    with pytest.raises(AutoshardError, match=r"keeps the usage limit of -1; .* raise the limit"):
        solve(two_nodes(usage_limit=-1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "IOPDDL JSON has"),
        ("[]", "IOPDDL JSON has"),
        ("null", "IOPDDL JSON has"),
        ('{"problem": {"nodes": {}, "edges": {}}}', "IOPDDL JSON has .* KeyError: 'costs'"),
        ("[" * 100_000, "nested five deep"),
        (None, "IOPDDL JSON has"),
        (b"\xff", "IOPDDL JSON has"),
    ],
    ids=["empty", "list", "null", "fields", "deep", "none", "bytes"],
)
def test_rejects_text_that_is_no_problem(text, message):
    with pytest.raises(ProblemError, match=message):
        Problem.from_json(text)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("edges", "costs"), [[0, 7]], "every edge has costs; got 3 and 1"),
        (("edges", "nodes", 0), [0, 0.5], r"joins two nodes.*; got \[0, 0.5\]"),
        (("edges", "nodes", 0), [-1, -1], r"edge \(-1, -1\) does not fit its nodes"),
        (("edges", "costs", 0), [1], r"does not fit its nodes: 1 costs for 2 and 1 strategies"),
        (("edges", "costs", 0), ["1", "2"], "costs are arrays of numbers; edge 0 has"),
        (("nodes", "costs", 2), [0, 10**400, 0], "costs are arrays of numbers; node 2 has"),
        (("nodes", "costs", 2), {"a": 1}, "costs are arrays of numbers; node 2 has"),
        (("nodes", "usages", 0), [-1, 0], "finite and >= 0"),
        (("nodes", "intervals", 0), [0.5, 1], "an interval is two whole numbers"),
        (("nodes", "intervals"), 3, "IOPDDL JSON has"),
        (("usage_limit",), "20", "a usage limit is a number"),
    ],
)
def test_rejects_json_with_a_value_that_cannot_be(path, value, message):
    spoiled = copy.deepcopy(TINY)
    *way, last = ("problem", *path)
    at = spoiled
    for step in way:
        at = at[step]
    at[last] = value
    with pytest.raises(ProblemError, match=message):
        Problem.from_json(json.dumps(spoiled))


@st.composite
def spoiled_texts(draw):
    """JSON of a problem with one value replaced by any other, or cut or changed as text."""
    tree = copy.deepcopy(TINY)
    at = tree
    while True:
        key = draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        inner = at[key]
        if not isinstance(inner, dict | list) or not inner or draw(st.booleans()):
            break
        at = inner
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
    big = st.sampled_from([10**18, 10**30, 10**400, 1e308, -1e308])
    values = st.recursive(scalars | big, lambda v: st.lists(v, max_size=3), max_leaves=4)
    at[key] = draw(values)
    text = json.dumps(tree)
    first = draw(st.integers(0, len(text)))
    return draw(st.sampled_from([text, text, text[:first], text[:first] + "]" + text[first:]]))


@given(spoiled_texts())
def test_spoiled_json_is_solved_or_a_typed_error(text):
    with contextlib.suppress(AutoshardError):
        assert math.isfinite(solve(Problem.from_json(text), steps=5).objective)


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", gzip.compress(b"{}")[:-3], b"\x1f\x8bxx", gzip.compress(b"\xff"), b""],
    ids=["no text", "cut short", "no gzip", "no text in gzip", "empty"],
)
def test_rejects_a_file_that_is_none(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ProblemError, match=r"a problem is a file of JSON|IOPDDL JSON has"):
        Problem.from_file(tmp_path / "x")


@pytest.mark.parametrize("choice", [None, 3, (0, 0.5, 0), "000", (0, None, 0), (0, -1, 0)])
def test_evaluate_rejects_what_is_no_choice(choice):
    with pytest.raises(ProblemError, match=r"whole number for each node|has strategies 0 to"):
        evaluate(Problem.from_json(json.dumps(TINY)), choice)


def test_evaluate_takes_numpys_whole_numbers():
    problem = Problem.from_json(json.dumps(TINY))
    assert evaluate(problem, np.array([0, 0, 1])) == evaluate(problem, (0, 0, 1))


@pytest.mark.parametrize("nothing", [None, 3, "x"])
def test_what_is_no_problem_is_neither_solved_nor_judged(nothing):
    with pytest.raises(ProblemError, match="problem must be of class Problem; got"):
        solve(nothing)
    with pytest.raises(ProblemError, match="problem must be of class Problem; got"):
        evaluate(nothing, ())
