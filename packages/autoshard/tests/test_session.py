import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from autoshard import (
    METHODS,
    InfeasibleError,
    Problem,
    ProblemError,
    RecordError,
    SolverSession,
    evaluate,
    solve,
)
from autoshard.solvers.solution_json import solution_from_json, solution_to_json
from autoshard.testing import brute_force, problems
from hypothesis import given, settings
from hypothesis import strategies as st


class Clock:
    """A clock that advances by one second at each call."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        self.seconds += 1.0
        return self.seconds


@st.composite
def offers(draw):
    """A problem and some choices for it."""
    problem = draw(problems())
    choice = st.tuples(*(st.integers(0, len(cost) - 1) for cost in problem.node_costs))
    return problem, draw(st.lists(choice, max_size=8))


@given(offers())
def test_a_run_keeps_the_cheapest_feasible_choice(case):
    problem, choices = case
    run = SolverSession(problem, time_s=math.inf)
    costs = [math.inf]
    for choice in choices:
        judged = evaluate(problem, choice)
        kept = run.offer(choice)
        assert kept == (judged.feasible and judged.cost < min(costs))
        costs.append(judged.cost if judged.feasible else math.inf)
    assert run.objective == min(costs)
    assert (run.best is None) == math.isinf(min(costs))


@given(offers(), st.lists(st.integers(-9, 9), max_size=5))
def test_a_trace_only_gets_better(case, bounds):
    problem, choices = case
    told = []
    run = SolverSession(problem, time_s=math.inf, progress=told.append, clock=Clock())
    for choice in choices:
        run.offer(choice)
    for bound in bounds:
        run.raise_bound(float(bound))
    assert told == run.trace
    for before, after in pairwise(told):
        assert before.seconds < after.seconds
        assert before.objective >= after.objective
        assert before.lower_bound <= after.lower_bound
        assert (before.objective, before.lower_bound) != (after.objective, after.lower_bound)


def test_steps_are_counted_and_end():
    run = SolverSession(one_node(), time_s=math.inf, steps=5)
    assert [run.step(2), run.step(2), run.step(2), run.step()] == [True, True, False, True]
    assert run.n_steps == 5
    assert run.steps_left == 0
    assert not run.step()


def test_no_step_is_taken_when_the_time_is_up():
    run = SolverSession(one_node(), time_s=2.5, clock=Clock())
    assert [run.step(), run.step(), run.step()] == [True, True, False]


def test_no_step_is_taken_when_the_gap_is_closed():
    run = SolverSession(one_node(), time_s=math.inf)
    run.offer([0])
    assert run.step()
    run.raise_bound(1.0)
    assert run.is_proved
    assert not run.step()


def test_a_bound_that_rounding_raised_above_the_cost_is_the_cost():
    run = SolverSession(one_node(), time_s=math.inf)
    run.offer([0])
    run.raise_bound(1.0 + 1e-15)
    assert run.solution("test").lower_bound == 1.0
    assert run.solution("test").gap == 0.0


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=settings().max_examples // 2)
@given(problem=problems(max_nodes=3, max_strategies=3))
def test_every_method_returns_something_feasible_and_a_true_bound(method, problem):
    optimum, _ = brute_force(problem)
    try:
        solution = solve(problem, method, steps=200)
    except InfeasibleError:
        assert math.isinf(optimum) or method == "message_passing"
        return
    judged = evaluate(problem, solution.choice)
    assert judged.feasible
    assert judged.cost == solution.objective >= optimum - 1e-9
    assert solution.lower_bound <= optimum + 1e-6
    assert solution.trace[-1].objective == solution.objective


@given(problems(forbidden=False, limited=False))
def test_a_solution_is_read_back_equal(problem):
    solution = solve(problem)
    assert solution_from_json(solution_to_json(solution, peak_bytes=1)) == solution


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"choice": ["a"]}', '{"choice": 3}'])
def test_what_is_no_solution_is_refused(text):
    with pytest.raises(RecordError, match="a solution has choice, objective"):
        solution_from_json(text)


def test_an_unknown_method_is_refused_with_those_there_are():
    with pytest.raises(ProblemError, match=r"a method is one of auto, ilp.*; got 'magic'"):
        solve(one_node(), "magic")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"time_s": 0.0}, "time_s > 0"),
        ({"time_s": math.nan}, "time_s > 0"),
        ({"time_s": "x"}, "time_s > 0"),
        ({"steps": 0}, "steps >= 1"),
        ({"steps": 1.5}, "steps >= 1"),
        ({"gap": -0.1}, "a gap >= 0, relative; got -0.1"),
        ({"gap": math.inf}, "a gap >= 0"),
        ({"seed": -1}, "a seed is a whole number >= 0; got -1"),
        ({"seed": "x"}, "a seed is a whole number"),
    ],
)
def test_a_budget_or_seed_that_is_none_is_refused(arguments, message):
    with pytest.raises(ProblemError, match=message):
        solve(one_node(), **arguments)


@pytest.mark.parametrize("start", [(), (2,), (-1,), (0, 0), (0.5,), "x", 3])
def test_a_start_that_does_not_fit_is_refused(start):
    with pytest.raises(ProblemError):
        solve(one_node(), start=start)


def test_what_was_not_found_in_time_says_so():
    table = np.full((9, 9), math.inf)
    table[8, 8] = 0.0
    zero = np.zeros(9)
    problem = Problem((zero, zero), ((0, 1),), (table,), (zero, zero), ((0, 0), (0, 0)))
    run = SolverSession(problem, time_s=math.inf)
    run.step()
    run.offer([0, 0])
    with pytest.raises(InfeasibleError, match=r"method found no choice .* in 1 steps"):
        run.solution("method")
    nothing = replace(problem, edge_costs=(np.full((9, 9), math.inf),))
    with pytest.raises(InfeasibleError, match=r"every choice .* has a forbidden"):
        solve(nothing, "ilp")


def one_node():
    return Problem((np.array([1.0, 2.0]),), (), (), (np.zeros(2),), ((0, 0),))


@given(offers(), st.floats(0.0, 0.5))
def test_a_run_ends_where_its_best_is_within_the_gap_of_the_bound(case, gap):
    problem, choices = case
    run = SolverSession(problem, time_s=math.inf, gap=gap)
    for choice in choices:
        run.offer(choice)
    if run.best is None or run.objective <= 0.0:
        return
    run.raise_bound(run.objective * (1.0 - gap) * (1.0 - 1e-6) - 1e-6)
    assert run.step()
    run.raise_bound(run.objective * (1.0 - gap / 2))
    assert not run.step()
