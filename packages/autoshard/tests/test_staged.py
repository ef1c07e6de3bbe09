"""Tied layers and coarse graphs give ordinary solutions of the whole problem."""

from dataclasses import replace

import numpy as np
import pytest
from autoshard import InfeasibleError, ProblemError, evaluate, solve
from autoshard.graph.repeats import repeated_operators
from autoshard.programs import deep_mlp_step
from autoshard.shard import prepare
from autoshard.solvers.staged import solve_quickly
from costmodel import Cluster
from shardspec import Mesh

GRAPH = deep_mlp_step(widths=(64,) * 5, batch=32)
NODES = range(len(GRAPH.inputs), len(GRAPH.inputs) + len(GRAPH.operators))
PREPARED = prepare(GRAPH, Mesh((4,), ("x",)), Cluster.preset("two-hosts"))
PROBLEM = PREPARED.light.problem
WHOLE = solve(PROBLEM)
FEW = deep_mlp_step(widths=(64,) * 3, batch=32)
SMALL = prepare(FEW, Mesh((2,), ("x",)), Cluster.preset("two-hosts")).light.problem
TINY = prepare(GRAPH, Mesh((2,), ("x",)), Cluster.preset("two-hosts")).light.problem
WAYS = [{"tie": True}, {"level": "O2"}, {"tie": True, "level": "O2"}, {}]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_what_is_found_costs_what_is_said_and_is_never_below_the_optimum(way):
    found = solve_quickly(GRAPH, PROBLEM, NODES, **way)
    assert evaluate(PROBLEM, found.choice).cost == found.objective
    assert found.lower_bound <= WHOLE.objective <= found.objective * (1 + 1e-9)


def test_the_whole_graph_is_never_worse_than_the_coarse_one():
    """O3 against O2, both solved exactly."""
    coarse = solve_quickly(GRAPH, PROBLEM, NODES, level="O2")
    whole = solve_quickly(GRAPH, PROBLEM, NODES)
    assert WHOLE.gap < 1e-9
    assert whole.objective <= coarse.objective * (1 + 1e-9)


def test_tied_operators_take_the_same_strategy():
    found = solve_quickly(GRAPH, PROBLEM, NODES, tie=True)
    first = repeated_operators(GRAPH)
    assert len(set(first)) < len(first)
    for node, other in zip(NODES, first, strict=True):
        assert found.choice[node] == found.choice[NODES[other]]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_polished_answers_are_as_good_as_the_whole_graphs(way):
    found = solve_quickly(GRAPH, PROBLEM, NODES, polish=True, **way)
    assert found.objective == pytest.approx(WHOLE.objective)
    assert found.gap < 1e-9


def test_a_memory_limit_is_kept():
    problem, nodes = SMALL, range(len(FEW.inputs), len(FEW.inputs) + len(FEW.operators))
    peak = evaluate(problem, solve(problem).choice).peak_usage
    tight = replace(problem, usage_limit=0.97 * peak)
    best = solve(tight)
    for way in WAYS[:3]:
        found = solve_quickly(FEW, tight, nodes, **way)
        assert evaluate(tight, found.choice).feasible
        assert found.objective >= best.lower_bound


def test_a_limit_that_nothing_keeps_is_infeasible():
    nodes = range(len(FEW.inputs), len(FEW.inputs) + len(FEW.operators))
    with pytest.raises(InfeasibleError):
        solve_quickly(FEW, replace(SMALL, usage_limit=1.0), nodes, tie=True)


def test_where_layers_cannot_do_the_same_the_whole_problem_is_solved():
    """Of two tied operators, one has only the even strategies and the other only the odd ones."""
    first = repeated_operators(GRAPH)
    tied = next(i for i, other in enumerate(first) if other != i)
    products = (first[tied], tied)
    costs = list(TINY.node_costs)
    half = np.arange(len(costs[NODES[products[0]]])) % 2
    for product, parity in zip(products, (0, 1), strict=True):
        node = NODES[product]
        costs[node] = np.where(half == parity, costs[node], np.inf)
    problem = replace(TINY, node_costs=tuple(costs))
    found = solve_quickly(GRAPH, problem, NODES, tie=True)
    assert found.objective == pytest.approx(solve(problem).objective)


def test_an_unknown_level_is_refused():
    with pytest.raises(ProblemError, match=r"a coarse graph is one of .*'O2'.*got 'O9'"):
        solve_quickly(GRAPH, PROBLEM, NODES, level="O9")
