"""Groups of nodes that choose together: their costs and usages are those of their members."""

import itertools
import math

import numpy as np
import pytest
from autoshard import InfeasibleError, Problem, evaluate, solve
from autoshard.problem.groups import Groups, each_alone, grouped, solve_grouped
from autoshard.testing import brute_force, problems
from hypothesis import given
from hypothesis import strategies as st


@st.composite
def grouped_problems(draw, **kwargs):
    """A problem, and random groups of its nodes."""
    problem = draw(problems(**kwargs))
    drawn = [draw(st.integers(0, 2)) for _ in range(problem.n_nodes)]
    number = {name: index for index, name in enumerate(dict.fromkeys(drawn))}
    of = tuple(number[name] for name in drawn)
    choices = [draw(st.integers(1, 3)) for _ in number]
    strategies = tuple(
        np.array([draw(st.integers(0, len(cost) - 1)) for _ in range(choices[group])])
        for group, cost in zip(of, problem.node_costs, strict=True)
    )
    return problem, Groups(of, strategies), choices


def completed(problem, groups, choice):
    """The choice of every node of a grouped problem, where all nodes of a group agree."""
    full = [*choice, *[None] * (problem.n_nodes - groups.n_groups)]
    for i, j in problem.edges:
        if j >= groups.n_groups:
            full[j] = full[i]
    return full


def all_times(problem):
    ends = [end for interval in problem.intervals for end in interval]
    return list(range(min(ends), max(ends) + 1))


@given(grouped_problems())
def test_a_choice_of_groups_costs_and_uses_what_its_expansion_does(case):
    problem, groups, choices = case
    together = grouped(problem, groups, all_times(problem))
    for choice in itertools.product(*map(range, choices)):
        judged = evaluate(together, completed(together, groups, choice))
        expected = evaluate(problem, groups.expand(choice))
        assert judged.cost == expected.cost
        assert judged.peak_usage == expected.peak_usage
        assert judged.feasible == expected.feasible


@given(grouped_problems())
def test_solving_groups_finds_their_best_feasible_choice(case):
    problem, groups, choices = case
    judged = [evaluate(problem, groups.expand(c)) for c in itertools.product(*map(range, choices))]
    best = min((one.cost for one in judged if one.feasible), default=math.inf)
    if best == math.inf:
        with pytest.raises(InfeasibleError):
            solve_grouped(problem, groups, solve)
        return
    found = evaluate(problem, solve_grouped(problem, groups, solve))
    assert found.feasible
    assert found.cost == best


@given(problems())
def test_groups_of_one_node_are_the_problem(problem):
    cost, _ = brute_force(problem)
    if math.isfinite(cost):
        choice = solve_grouped(problem, each_alone(problem), solve)
        assert evaluate(problem, choice).cost == cost


@given(problems(limited=False))
def test_joining_groups_never_helps(problem):
    alone = each_alone(problem)
    sizes = [len(cost) for cost in problem.node_costs]
    distinct = sorted(set(sizes))
    alike = Groups(tuple(distinct.index(size) for size in sizes), alone.strategies)
    try:
        together = evaluate(problem, solve_grouped(problem, alone.then(alike), solve)).cost
    except InfeasibleError:
        return
    assert together >= brute_force(problem)[0]


def test_a_group_that_uses_the_same_all_the_time_stays_one_node():
    costs = (np.zeros(2), np.zeros(2))
    problem = Problem(costs, (), (), (np.array([1.0, 2.0]),) * 2, ((0, 9), (3, 5)), 4.0)
    assert grouped(problem, each_alone(problem), [1, 4]).n_nodes == 2
    both = Groups((0, 0), (np.arange(2), np.arange(2)))
    assert grouped(problem, both, [1, 4]).n_nodes == 2
    assert grouped(problem, both, [4]).n_nodes == 1


@given(grouped_problems(), st.data())
def test_groups_of_groups_expand_as_one_after_the_other(case, data):
    _, first, choices = case
    of = tuple(data.draw(st.integers(0, 1)) for _ in choices)
    second = Groups(of, tuple(np.array([data.draw(st.integers(0, n - 1))]) for n in choices))
    both = first.then(second).expand([0, 0])
    assert both == first.expand(second.expand([0, 0]))
