import json
import math

import numpy as np
import pytest
from autoshard import Problem, ProblemError, evaluate
from autoshard.testing import problems
from hypothesis import given

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
    ("choice", "message"), [((0,), "one strategy a node"), ((0, 0, 3), "has strategies 0 to 2")]
)
def test_evaluate_rejects_choices_that_are_none(choice, message):
    with pytest.raises(ProblemError, match=message):
        evaluate(Problem.from_json(json.dumps(TINY)), choice)
