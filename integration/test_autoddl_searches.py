import math
from dataclasses import replace

import numpy as np
import pytest
from autoddl.chain import FIGURE_8, PER_NODE, grids, sbp_chain
from autoddl.local_state import LocalState, Neighbours
from autoddl.searches import METHODS, search
from autoshard import InfeasibleError, evaluate, solve
from autoshard.testing import brute_force, problems
from hypothesis import given, settings
from hypothesis import strategies as st


@given(problems())
def test_exhaustive_equals_brute_force(problem):
    optimum, _ = brute_force(problem)
    if math.isinf(optimum):
        with pytest.raises(InfeasibleError):
            search(problem, "exhaustive")
        return
    solution = search(problem, "exhaustive")
    assert solution.objective == pytest.approx(optimum)
    assert solution.gap == 0.0


@settings(max_examples=max(100, settings().max_examples // 5))
@given(problems(limited=False))
def test_exhaustive_tells_the_smallest_limit_that_would_do(problem):
    peaks = [
        judged.peak_usage
        for choice in np.ndindex(*(len(cost) for cost in problem.node_costs))
        if math.isfinite((judged := evaluate(problem, choice)).cost)
    ]
    if min(peaks, default=0.0) < 1.0:  # no limit is too low
        return
    with pytest.raises(InfeasibleError, match="smallest peak usage") as caught:
        search(replace(problem, usage_limit=min(peaks) - 1.0), "exhaustive")
    assert caught.value.smallest_usage == min(peaks)


@settings(max_examples=settings().max_examples // 3)
@given(problem=problems(max_nodes=4, max_strategies=3), seed=st.integers(0, 2**32 - 1))
def test_random_search_finds_the_optimum_of_what_is_small(problem, seed):
    optimum, _ = brute_force(problem)
    if math.isinf(optimum):
        with pytest.raises(InfeasibleError):
            search(problem, "random", steps=100, seed=seed)
        return
    # 3,000 draws miss one of 81 choices once in 10^16 times
    assert search(problem, "random", steps=3_000, seed=seed).objective == pytest.approx(optimum)


@pytest.mark.parametrize("method", ["metropolis", "coordinate_descent"])
@settings(max_examples=settings().max_examples // 2)
@given(problem=problems(), seed=st.integers(0, 2**32 - 1))
def test_what_a_search_returns_is_feasible_or_it_says_so(method, problem, seed):
    try:
        solution = search(problem, method, steps=100, seed=seed)
    except InfeasibleError:
        return
    judged = evaluate(problem, solution.choice)
    assert judged.feasible
    assert judged.cost == solution.objective


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=settings().max_examples // 3)
@given(problem=problems(forbidden=False, limited=False), steps=st.integers(1, 40))
def test_the_same_seed_and_steps_give_the_same_answer(method, problem, steps):
    def found():
        try:
            solution = search(problem, method, steps=steps, seed=7)
        except InfeasibleError as error:  # descent did not get anywhere in so few steps
            return str(error).split(" steps")[0]
        return solution.choice, [(i.objective, i.steps) for i in solution.trace]

    assert found() == found()


@given(problems(), st.data())
def test_a_state_knows_its_worth_after_any_changes(problem, data):
    sizes = [len(cost) for cost in problem.node_costs]
    state = LocalState(problem, Neighbours(problem), [0] * len(sizes))
    for _ in range(5):
        node = data.draw(st.integers(0, len(sizes) - 1))
        strategy = data.draw(st.integers(0, sizes[node] - 1))
        state.take(node, strategy, state.changes(node)[strategy])
    anew = LocalState(problem, Neighbours(problem), state.choice)
    assert state.worth == pytest.approx(anew.worth)
    judged = evaluate(problem, state.choice)
    assert state.is_feasible == judged.feasible
    if math.isfinite(judged.cost):
        assert state.worth[2] == pytest.approx(judged.cost)


@given(problems(forbidden=False, limited=False), st.integers(0, 99))
def test_no_single_change_improves_what_descent_finds(problem, seed):
    solution = search(problem, "coordinate_descent", steps=300, seed=seed)
    state = LocalState(problem, Neighbours(problem), solution.choice)
    assert all((state.changes(node)[:, 2] >= -1e-6).all() for node in range(problem.n_nodes))


def test_grids_are_all_the_factorisations():
    assert grids(8) == sorted(
        (a, b, c) for a in range(1, 9) for b in range(1, 9) for c in range(1, 9) if a * b * c == 8
    )


@pytest.mark.parametrize("p", [128, 4096])
def test_figure_8_descent_and_metropolis_are_near_the_optimum_where_random_search_is_not(p):
    """AutoDDL 4.6: in a thousandth of the steps of the exhaustive search, in each of five runs."""
    problem = sbp_chain(p, FIGURE_8, PER_NODE * p)
    optimum = solve(problem).objective
    steps = math.prod(len(cost) for cost in problem.node_costs) // 1_000
    found = {
        method: [
            search(problem, method, steps=min(steps, 6_000), seed=seed).objective / optimum
            for seed in range(5)
        ]
        for method in ("coordinate_descent", "metropolis", "random")
    }
    assert np.median(found["coordinate_descent"]) == pytest.approx(1.0)
    assert np.median(found["coordinate_descent"]) <= np.median(found["metropolis"])
    assert max(found["coordinate_descent"] + found["metropolis"]) <= 1.01
    assert min(found["random"]) > 1.05


def test_the_exhaustive_search_finds_the_optimum_of_figure_8_on_few_devices():
    problem = sbp_chain(8, FIGURE_8, PER_NODE * 8)
    assert search(problem, "exhaustive").objective == solve(problem).objective
