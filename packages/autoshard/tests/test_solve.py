import itertools
import math
from dataclasses import replace

import autoshard.solvers.ilp as ilp_module
import numpy as np
import pytest
from autoshard import InfeasibleError, Problem, WidthError, evaluate, solve
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


@settings(max_examples=max(100, settings().max_examples // 5))
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
    solution = solve(problem, "local_search", steps=20)
    judged = evaluate(problem, solution.choice)
    assert solution.method == "search"
    assert judged.cost == solution.objective
    assert 0.0 < solution.lower_bound < solution.objective
    assert 0.0 < solution.gap < 1.0


def test_the_search_keeps_a_limit_that_binds():
    free = wide(8, 3, seed=2)
    peak = evaluate(free, solve(free).choice).peak_usage
    problem = replace(free, usage_limit=0.8 * peak)
    exact = solve(problem, "ilp")
    found = solve(problem, "local_search", steps=30)
    assert evaluate(problem, found.choice).feasible
    assert found.lower_bound <= exact.objective <= found.objective <= 1.3 * exact.objective


def test_the_same_seed_and_steps_give_the_same_answer_with_two_threads():
    free = wide(24, 6, seed=3)
    limit = 0.9 * evaluate(free, solve(free, "local_search", steps=5).choice).peak_usage
    problem = replace(free, usage_limit=limit)
    first, second = (solve(problem, "local_search", steps=60, seed=4) for _ in range(2))
    assert (first.choice, first.lower_bound) == (second.choice, second.lower_bound)


def test_what_only_the_integer_program_finds_is_proved_by_it():
    """Costs differ widely and few choices keep the limit, so the search finds none of them."""
    rng = np.random.default_rng(3000)

    def costs(*shape):
        return np.where(rng.random(shape) < 0.25, 0.0, np.floor(10 ** rng.uniform(0, 8, shape)))

    nodes = tuple(costs(4) for _ in range(6))
    edges = tuple((i, j) for i in range(6) for j in range(i + 1, 6) if rng.random() < 0.8)
    tables = tuple(costs(4, 4) for _ in edges)
    usages = tuple(rng.integers(0, 50, 4).astype(float) for _ in range(6))
    intervals = tuple((int(a), int(a + rng.integers(2, 6))) for a in rng.integers(0, 4, 6))
    free = Problem(nodes, edges, tables, usages, intervals)
    choices = itertools.product(range(4), repeat=6)
    peaks = [evaluate(free, choice).peak_usage for choice in choices]
    problem = replace(free, usage_limit=float(np.quantile(peaks, 0.01)))
    solution = solve(problem)
    assert solution.objective == brute_force(problem)[0]
    assert solution.gap < 1e-9


@given(problems(limited=False), st.data())
def test_a_choice_that_just_meets_a_limit_of_fractions_keeps_it(problem, data):
    """The order in which usages are added up must not matter."""
    tenths = replace(problem, usages=tuple(usage / 10.0 for usage in problem.usages))
    choice = [data.draw(st.integers(0, len(cost) - 1)) for cost in problem.node_costs]
    limited = replace(tenths, usage_limit=evaluate(problem, choice).peak_usage / 10.0)
    optimum, _ = brute_force(limited)
    assert (
        optimum
        == brute_force(replace(problem, usage_limit=evaluate(problem, choice).peak_usage))[0]
    )
    if math.isinf(optimum):
        with pytest.raises(InfeasibleError):
            solve(limited)
        return
    assert solve(limited).objective == optimum


def test_a_start_is_never_made_worse():
    problem = wide(24, 6, seed=5)
    start = solve(problem, "local_search", steps=30).choice
    again = solve(problem, "local_search", steps=1, start=start)
    assert again.objective <= evaluate(problem, start).cost


@settings(max_examples=settings().max_examples // 5)
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


@given(problems())
def test_elimination_finds_what_brute_force_finds(problem):
    """With and without a limit; if it finds nothing, it has proved that nothing is feasible."""
    optimum, _ = brute_force(problem)
    if math.isinf(optimum):
        with pytest.raises(InfeasibleError) as caught:
            solve(problem, "elimination")
        assert caught.value.is_proved
        return
    solution = solve(problem, "elimination")
    assert evaluate(problem, solution.choice).feasible
    assert (solution.objective, solution.gap) == (optimum, 0.0)


def test_elimination_keeps_a_limit_that_its_cheapest_choice_breaks():
    free = wide(6, 3, seed=2)
    peak = evaluate(free, solve(free).choice).peak_usage
    limited = replace(free, usage_limit=0.8 * peak)
    assert solve(free, "elimination").objective < solve(limited, "elimination").objective
    assert solve(limited, "elimination").objective == brute_force(limited)[0]


def test_elimination_without_the_steps_to_keep_a_limit_says_that_nothing_is_proved():
    free = wide(6, 3, seed=2)
    peak = evaluate(free, solve(free).choice).peak_usage
    limited = replace(free, usage_limit=0.8 * peak)
    message = r"elimination found no choice .* in 1 steps .*no proof that there is none; the smalle"
    with pytest.raises(InfeasibleError, match=message) as caught:
        solve(limited, "elimination", steps=1)
    assert not caught.value.is_proved


def test_elimination_says_how_wide_what_is_too_wide_is():
    with pytest.raises(WidthError, match=r"tables of 1e\+07 .* one of 10\*\*18.7;") as caught:
        solve(wide(24, 6, seed=1), "elimination")
    assert caught.value.digits == pytest.approx(24 * math.log10(6))


def test_message_passing_bounds_and_decodes():
    problem = wide(24, 6, seed=1)
    solution = solve(problem, "message_passing", steps=100)
    searched = solve(problem, "local_search", steps=20)
    assert evaluate(problem, solution.choice).feasible
    assert 0.0 < solution.lower_bound <= searched.objective
    assert solution == replace(
        solve(problem, "message_passing", steps=100),
        seconds=solution.seconds,
        trace=solution.trace,
    )


@given(problems(forbidden=False))
def test_message_passing_never_bounds_too_high_however_long(problem):
    optimum, _ = brute_force(problem)
    try:
        assert solve(problem, "message_passing", steps=300).lower_bound <= optimum + 1e-6
    except InfeasibleError:
        return


@settings(max_examples=max(50, settings().max_examples // 5))
@given(problems(), st.data(), st.sampled_from(["auto", "ilp", "local_search"]))
def test_costs_of_all_magnitudes_in_one_problem_get_valid_answers(problem, data, method):
    """In doubles, 1 is lost beside 1e200, but bounds have to hold all the same."""
    large = st.sampled_from([1.0, 1.0, 1e15, 1e40, 1e200, 1e300])

    def mixed(costs):
        scales = data.draw(st.lists(large, min_size=costs.size, max_size=costs.size))
        return costs * np.array(scales).reshape(costs.shape)

    problem = replace(
        problem,
        node_costs=tuple(map(mixed, problem.node_costs)),
        edge_costs=tuple(map(mixed, problem.edge_costs)),
    )
    optimum, _ = brute_force(problem)
    if math.isinf(optimum):
        with pytest.raises(InfeasibleError):
            solve(problem, method, steps=200)
        return
    solution = solve(problem, method, steps=200)
    assert evaluate(problem, solution.choice).feasible
    assert solution.lower_bound <= optimum * (1 + 1e-9)
    assert optimum <= solution.objective * (1 + 1e-9)


def test_the_search_for_the_smallest_peak_keeps_the_budget_of_steps(monkeypatch):
    budgets = []
    solver = ilp_module.solve_highs

    def watched(milp, *, nodes, **given):
        budgets.append(nodes)
        return solver(milp, nodes=nodes, **given)

    monkeypatch.setattr(ilp_module, "solve_highs", watched)
    problem = wide(8, 4, seed=1, limit=1.0)
    with pytest.raises(InfeasibleError, match="smallest peak usage") as caught:
        solve(problem, steps=7)
    assert caught.value.smallest_usage > 1.0
    assert budgets
    assert all(nodes is not None and nodes <= 7 for nodes in budgets)
