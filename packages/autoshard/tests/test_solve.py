import math
from dataclasses import replace

import numpy as np
import pytest
from autoshard import InfeasibleError, Problem, evaluate, solve
from autoshard.bound import lower_bound
from autoshard.neighbourhood import search
from autoshard.network import Network
from autoshard.reduce import eliminate_all, reduce_to_pairs, widest_table
from autoshard.subspace import descend
from autoshard.testing import brute_force, problems
from hypothesis import given, settings
from hypothesis import strategies as st

FREE = problems(forbidden=False, limited=False)


@given(problems())
def test_solve_equals_brute_force(problem):
    optimum, _ = brute_force(problem)
    if math.isinf(optimum):
        with pytest.raises(InfeasibleError):
            solve(problem)
        return
    solution = solve(problem)
    judged = evaluate(problem, solution.choice)
    assert judged.feasible
    assert judged.cost == solution.objective == pytest.approx(optimum)
    assert solution.gap == pytest.approx(0.0, abs=1e-6)


@given(problems(limited=False), st.floats(0.0, 1.0))
def test_an_infeasible_limit_is_told_with_the_smallest_that_would_do(problem, part):
    costs = tuple(np.zeros_like(cost) for cost in problem.node_costs)
    tables = tuple(np.where(np.isfinite(t), 0.0, np.inf) for t in problem.edge_costs)
    peaks = [
        evaluate(replace(problem, node_costs=costs, edge_costs=tables), choice)
        for choice in np.ndindex(*(len(cost) for cost in costs))
    ]
    smallest = min((p.peak_usage for p in peaks if math.isfinite(p.cost)), default=0.0)
    limit = math.floor(part * smallest)
    if limit >= smallest:
        return
    with pytest.raises(InfeasibleError, match="smallest peak usage") as caught:
        solve(replace(problem, usage_limit=float(limit)))
    assert caught.value.smallest_usage == smallest


def test_says_so_if_every_choice_is_forbidden():
    zero = np.zeros(1)
    table = np.array([[math.inf]])
    problem = Problem((zero, zero), ((0, 1),), (table,), (zero, zero), ((0, 0), (0, 0)))
    with pytest.raises(InfeasibleError, match="forbidden strategy or pair") as caught:
        solve(problem)
    assert caught.value.smallest_usage is None


@given(problems(limited=False, max_nodes=5))
def test_reduction_to_pairs_keeps_the_optimum(problem):
    optimum, _ = brute_force(problem)
    network = Network(problem)
    reduce_to_pairs(network)
    core, nodes = network.core(problem)
    rest, choice = brute_force(core)
    assert rest + network.constant == pytest.approx(optimum)
    if choice is not None:
        whole = network.expand(nodes, list(choice))
        assert evaluate(problem, whole).cost == pytest.approx(optimum)


@given(problems(limited=False, max_nodes=5))
def test_reduction_leaves_nodes_whose_memory_binds(problem):
    network = Network(problem)
    network.bound = dict(enumerate(problem.usages))
    reduce_to_pairs(network)
    assert sorted(network.unary) == list(range(problem.n_nodes))


@given(problems(max_nodes=5), st.integers(0, 20))
def test_reduction_with_memory_keeps_the_optimum(problem, limit):
    problem = replace(problem, usage_limit=float(limit))
    network = Network(problem)
    network.bound = dict(enumerate(problem.usages))
    reduce_to_pairs(network)
    core, _ = network.core(problem)
    assert brute_force(core)[0] + network.constant == pytest.approx(brute_force(problem)[0])


@given(problems(limited=False))
def test_full_elimination_is_exact(problem):
    network = Network(problem)
    assert eliminate_all(network, 10**6)
    choice = network.choose({})
    assert network.constant == pytest.approx(brute_force(problem)[0])
    assert evaluate(problem, choice).cost == pytest.approx(network.constant)


@given(problems(limited=False))
def test_elimination_stays_within_the_foreseen_width(problem):
    foreseen = widest_table(Network(problem))
    assert eliminate_all(Network(problem), foreseen)


@given(FREE)
def test_searches_never_beat_the_optimum_nor_the_bound_pass_it(problem):
    optimum, _ = brute_force(problem)
    assert evaluate(problem, search(problem)).cost >= optimum - 1e-9
    assert lower_bound(problem) <= optimum + 1e-9


@given(FREE)
def test_a_ball_that_holds_everything_is_exact(problem):
    assert evaluate(problem, search(problem)).cost == pytest.approx(brute_force(problem)[0])


@given(FREE)
def test_descent_with_one_axis_is_exact(problem):
    points = [np.arange(len(cost))[:, None] for cost in problem.node_costs]
    choice = descend(problem, points, [point[0] for point in points])
    assert evaluate(problem, choice).cost == pytest.approx(brute_force(problem)[0])


@given(FREE)
def test_no_single_move_improves_what_descent_finds(problem):
    points = [
        np.stack([np.arange(len(c)) // 2, np.arange(len(c)) % 2], 1) for c in problem.node_costs
    ]
    choice = descend(problem, points, [point[0] for point in points])
    cost = evaluate(problem, choice).cost
    for node, of_node in enumerate(points):
        for other in range(len(of_node)):
            if (of_node[other] != of_node[choice[node]]).sum() == 1:
                moved = [*choice[:node], other, *choice[node + 1 :]]
                assert evaluate(problem, moved).cost >= cost - 1e-9


def wide(n_nodes, n_strategies, seed, limit=None):
    """Every pair of nodes joined: too wide to eliminate beyond a few nodes."""
    rng = np.random.default_rng(seed)
    pairs = [(i, j) for i in range(n_nodes) for j in range(i)]
    return Problem(
        tuple(rng.integers(0, 30, n_strategies).astype(float) for _ in range(n_nodes)),
        tuple(pairs),
        tuple(rng.integers(0, 30, (n_strategies,) * 2).astype(float) for _ in pairs),
        tuple(rng.integers(1, 30, n_strategies).astype(float) for _ in range(n_nodes)),
        ((0, 1),) * n_nodes,
        limit,
    )


def test_what_is_too_wide_is_searched_and_bounded():
    problem = wide(24, 6, seed=1)
    solution = solve(problem, method="local_search")
    judged = evaluate(problem, solution.choice)
    assert solution.method == "search"
    assert judged.cost == solution.objective
    assert 0.0 < solution.lower_bound < solution.objective
    assert 0.0 < solution.gap < 1.0


def test_prices_keep_a_limit_where_the_ilp_is_left_out():
    free = wide(8, 3, seed=2)
    peak = evaluate(free, solve(free).choice).peak_usage
    problem = replace(free, usage_limit=0.8 * peak)
    exact = solve(problem)
    priced = solve(problem, method="local_search")
    assert priced.method == "multipliers"
    assert evaluate(problem, priced.choice).feasible
    assert priced.lower_bound <= exact.objective <= priced.objective <= 1.3 * exact.objective


@settings(max_examples=20)
@given(problems())
def test_the_same_problem_has_the_same_answer(problem):
    def answer():
        try:
            return solve(problem).choice
        except InfeasibleError as error:
            return str(error)

    assert answer() == answer()


@given(problems(limited=False), st.integers(1, 5))
def test_more_expensive_edges_never_make_it_cheaper(problem, factor):
    dearer = replace(problem, edge_costs=tuple(table * factor for table in problem.edge_costs))
    try:
        objective = solve(problem).objective
    except InfeasibleError:
        return
    assert solve(dearer).objective >= objective - 1e-9
