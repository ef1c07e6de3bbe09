"""Rhino's coarse graphs: what is merged, and that costs and bounds hold for the whole problem."""

import math

import numpy as np
import pytest
from autoshard import InfeasibleError, Problem, evaluate, solve
from autoshard.problem.groups import grouped, solve_grouped
from autoshard.programs import gpt_step, mlp_step
from autoshard.solvers.coarsen import cone_roots, critical_operators, decided_by, merge, nearest
from autoshard.testing import brute_force, problems
from hypothesis import given, settings
from hypothesis import strategies as st

GPT = gpt_step(n_layers=2, batch=8, length=16, width=16, heads=4, vocabulary=32)


def test_a_cone_has_one_operator_with_several_operands():
    roots = cone_roots(GPT)
    for root in set(roots):
        cone = [GPT.operators[i] for i, other in enumerate(roots) if other == root]
        assert sum(len(operator.inputs) > 1 for operator in cone) <= 1


def test_operators_of_a_cone_lead_to_its_root():
    roots, producers = cone_roots(GPT), GPT.producers
    readers = [set() for _ in GPT.operators]
    for index, operator in enumerate(GPT.operators):
        for name in operator.inputs:
            if name in producers:
                readers[producers[name][0]].add(index)
    for index, root in enumerate(roots):
        assert root == index or root in {roots[reader] for reader in readers[index]}


def test_the_critical_operators_of_an_mlp_are_its_products_on_the_way_of_the_gradient():
    graph = mlp_step(batch=8, width=8, hidden=16)
    critical = [graph.operators[index] for index in critical_operators(graph)]
    assert [operator.kind for operator in critical] == ["einsum"] * 4
    assert {"w1", "w2"} <= {name for operator in critical for name in operator.inputs}


def test_critical_operators_follow_on_one_another():
    depth = {}
    for index, operator in enumerate(GPT.operators):
        makers = [GPT.producers[n][0] for n in operator.inputs if n in GPT.producers]
        depth[index] = 1 + max((depth[maker] for maker in makers), default=0)
    levels = [depth[index] for index in critical_operators(GPT)]
    assert levels == sorted(levels)
    assert 0 < len(levels) < len(GPT.operators) // 20


@given(problems(limited=False), st.data())
def test_what_a_root_decides_is_the_best_for_each_of_its_strategies(problem, data):
    root = data.draw(st.integers(0, problem.n_nodes - 1))
    chosen = decided_by(problem, root)
    for strategy, choice in enumerate(chosen.tolist()):
        fixed = list(problem.node_costs)
        fixed[root] = np.where(np.arange(len(fixed[root])) == strategy, fixed[root], np.inf)
        alone = Problem(
            tuple(fixed), problem.edges, problem.edge_costs, problem.usages, problem.intervals
        )
        best, _ = brute_force(alone)
        assert choice[root] == strategy or best == math.inf
        assert evaluate(alone, choice).cost == best or best == math.inf


@settings(max_examples=max(100, settings().max_examples // 5))
@given(problems(), st.data())
def test_a_merged_problem_gives_choices_of_the_whole_never_better_than_its_optimum(problem, data):
    nodes = st.integers(0, problem.n_nodes - 1)
    drawn = [data.draw(nodes) for _ in range(problem.n_nodes)]
    roots = [root if drawn[root] == root else node for node, root in enumerate(drawn)]
    groups = merge(problem, roots)
    try:
        choice = solve_grouped(problem, groups, solve)
    except InfeasibleError:
        return
    judged = evaluate(problem, choice)
    assert judged.feasible
    assert judged.cost >= brute_force(problem)[0]


@given(problems(limited=False, forbidden=False))
def test_merging_all_into_one_is_exact(problem):
    groups = merge(problem, [0] * problem.n_nodes)
    costs = grouped(problem, groups).node_costs[0]
    assert costs.min() == pytest.approx(brute_force(problem)[0], abs=1e-6)


def test_of_equal_choices_the_one_that_forbids_least_outside_is_taken():
    free, open_table = np.zeros(2), np.zeros((2, 2))
    blocked = np.array([[math.inf, 0.0], [0.0, 0.0]])
    problem = Problem(
        (free,) * 3, ((0, 1), (1, 2)), (open_table, blocked), (free,) * 3, ((0, 0),) * 3
    )
    groups = merge(problem, [0, 0, 2])
    assert groups.strategies[1].tolist() == [1, 1]


def test_every_node_joins_the_pivot_with_fewest_edges_between():
    free, table = np.zeros(1), np.zeros((1, 1))
    edges = ((0, 1), (1, 2), (2, 3), (3, 4))
    problem = Problem((free,) * 6, edges, (table,) * 4, (free,) * 6, ((0, 0),) * 6)
    assert nearest(problem, [0, 4], set()) == [0, 0, 0, 4, 4, 5]
    assert nearest(problem, [0, 4], {1}) == [0, 1, 4, 4, 4, 5]


@given(problems(limited=False), st.data())
def test_deciding_again_around_a_choice_keeps_that_choice(problem, data):
    best, choice = brute_force(problem)
    if choice is None:
        return
    nodes = st.integers(0, problem.n_nodes - 1)
    drawn = [data.draw(nodes) for _ in range(problem.n_nodes)]
    roots = [root if drawn[root] == root else node for node, root in enumerate(drawn)]
    groups = merge(problem, roots, choice)
    again = groups.expand([choice[root] for root in dict.fromkeys(roots)])
    assert tuple(again) == choice
    assert evaluate(problem, solve_grouped(problem, groups, solve)).cost == best
