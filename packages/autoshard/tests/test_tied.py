"""Repeated layers are detected and tied."""

import numpy as np
import pytest
from autoshard import Problem, evaluate, solve
from autoshard.graph.repeats import longest_repeat, repeated_operators
from autoshard.problem.groups import solve_grouped
from autoshard.problem.tied import tied
from autoshard.programs import deep_mlp_step, gpt_step
from autoshard.testing import problems
from hypothesis import given, settings
from hypothesis import strategies as st


def gpt(n_layers):
    return gpt_step(n_layers=n_layers, batch=8, length=16, width=16, heads=4, vocabulary=32)


@given(st.lists(st.integers(0, 3), max_size=6), st.integers(2, 5), st.integers(0, 3))
def test_repeated_items_are_found_whatever_is_around_them(unit, repeats, n_around):
    around = list(range(10, 10 + n_around))
    period, start, stop = longest_repeat([*around, *unit * repeats, *reversed(around)])
    items = [*around, *unit * repeats, *reversed(around)][start:stop]
    assert len(items) >= len(unit) * repeats
    assert all(items[i] == items[i - period] for i in range(period, len(items)))


def test_items_that_differ_do_not_repeat():
    assert longest_repeat([1, 2, 3, 4]) == (0, 0, 0)
    assert longest_repeat([]) == (0, 0, 0)


def test_more_layers_make_no_more_kinds_of_operators():
    few, many = (repeated_operators(gpt(n_layers)) for n_layers in (3, 6))
    assert len(set(few)) == len(set(many)) < len(few)


def test_tied_operators_have_one_rule_and_phase():
    graph = gpt(4)
    for operator, first in zip(graph.operators, repeated_operators(graph), strict=True):
        other = graph.operators[first]
        assert (operator.rule, operator.phase) == (other.rule, other.phase)


def test_layers_of_different_widths_are_not_tied():
    graph = deep_mlp_step(widths=(8, 16, 32, 64), batch=4)
    products = [i for i, op in enumerate(graph.operators) if op.kind == "einsum"]
    first = repeated_operators(graph)
    assert [first[i] for i in products] == products


@settings(max_examples=max(100, settings().max_examples // 5))
@given(problems())
def test_nodes_that_are_tied_have_equally_many_strategies(problem):
    groups = tied(problem, dict.fromkeys(range(0, problem.n_nodes, 2), 0))
    for group in range(groups.n_groups):
        members = [node for node, of in enumerate(groups.of) if of == group]
        assert len({len(problem.node_costs[node]) for node in members}) == 1


def test_the_neighbours_of_tied_nodes_are_tied_where_they_cost_the_same():
    """Three layers, where the copy between the last two costs more."""
    table, dear = np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([[0.0, 5.0], [5.0, 0.0]])
    edges = ((0, 4), (4, 1), (1, 5), (5, 2), (2, 6), (6, 3))
    costs = (table, table, table, table, dear, table)
    n = 7
    problem = Problem((np.zeros(2),) * n, edges, costs, (np.zeros(2),) * n, ((0, 0),) * n)
    of = tied(problem, {0: 0, 1: 0, 2: 0, 3: 0}).of
    assert of[4] == of[5] != of[6]
    assert of[0] == of[1] == of[2] == of[3]


def test_tied_layers_choose_alike_as_well_as_they_can():
    row = np.array([3.0, 1.0])
    table = np.array([[0.0, 4.0], [4.0, 0.0]])
    problem = Problem(
        (row, row[::-1].copy(), row, row[::-1].copy()),
        ((0, 1), (1, 2), (2, 3)),
        (table,) * 3,
        (np.zeros(2),) * 4,
        ((0, 0),) * 4,
    )
    choice = solve_grouped(problem, tied(problem, {0: 0, 1: 1, 2: 0, 3: 1}), solve)
    assert choice[0] == choice[2]
    assert choice[1] == choice[3]
    assert evaluate(problem, choice).cost == pytest.approx(8.0)
