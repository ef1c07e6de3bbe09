import math
import signal
from dataclasses import replace
from threading import Timer

import numpy as np
import pytest
from autoshard import InfeasibleError, InternalError, Problem, evaluate, solve
from autoshard.problem.full_times import Live
from autoshard.solvers.highs import solve_highs
from autoshard.solvers.linearise import Linear
from autoshard.testing import brute_force, problems
from hypothesis import given, settings
from hypothesis import strategies as st


@settings(max_examples=settings().max_examples // 2)
@given(problem=problems())
def test_the_ilp_equals_brute_force(problem):
    optimum, _ = brute_force(problem)
    if math.isinf(optimum):
        with pytest.raises(InfeasibleError):
            solve(problem, "ilp")
        return
    solution = solve(problem, "ilp")
    judged = evaluate(problem, solution.choice)
    assert judged.feasible
    assert judged.cost == solution.objective == pytest.approx(optimum)
    assert solution.lower_bound == pytest.approx(optimum)


@settings(max_examples=settings().max_examples // 2)
@given(st.data(), st.sampled_from([1e6, 1e9, 1e12, 1e15]))
def test_bounds_hold_where_the_cheapest_strategies_together_cost_millions_of_times_more(
    data, penalty
):
    """The program's unit cannot be known before a good choice is known."""
    costs = st.integers(10, 99).map(float)
    n = data.draw(st.integers(2, 5))
    nodes = tuple(np.array([0.0, data.draw(costs), data.draw(costs)]) for _ in range(n))
    table = np.zeros((3, 3))
    table[0, 0] = penalty
    edges = tuple((k, k + 1) for k in range(n - 1))
    problem = Problem(nodes, edges, (table,) * (n - 1), (np.zeros(3),) * n, ((0, 0),) * n, None)
    optimum, _ = brute_force(problem)
    solution = solve(problem, "ilp")
    assert solution.objective == optimum
    assert solution.lower_bound == pytest.approx(optimum)


def lazy(n_nodes, limit):
    """A long chain of long-lived nodes: it has so many rows that they are added as needed."""
    rng = np.random.default_rng(0)
    return Problem(
        tuple(np.array([0.0, 3.0, float(k % 5)]) for k in range(n_nodes)),
        tuple((k, k + 1) for k in range(n_nodes - 1)),
        tuple(rng.integers(0, 5, (3, 3)).astype(float) for _ in range(n_nodes - 1)),
        tuple(np.array([9.0, 0.0, 4.0]) for _ in range(n_nodes)),
        tuple((k, k + 12) for k in range(n_nodes)),
        limit,
    )


def test_a_limit_is_kept_where_rows_are_added_as_needed():
    problem = lazy(24, 36.0)
    free = solve(replace(problem, usage_limit=None), "ilp")
    assert not evaluate(problem, free.choice).feasible
    solution = solve(problem, "ilp")
    assert evaluate(problem, solution.choice).feasible
    assert solution.gap < 1e-9
    assert solution.objective > free.objective
    assert solution.objective == solve(problem).objective


@settings(max_examples=settings().max_examples // 3)
@given(problem=problems(limited=False), part=st.floats(0.0, 1.0))
def test_the_ilp_tells_the_smallest_limit_that_would_do(problem, part):
    peaks = [
        judged.peak_usage
        for choice in np.ndindex(*(len(cost) for cost in problem.node_costs))
        if math.isfinite((judged := evaluate(problem, choice)).cost)
    ]
    limit = math.floor(part * min(peaks, default=0.0))
    if limit >= min(peaks, default=0.0):
        return
    with pytest.raises(InfeasibleError, match="smallest peak usage") as caught:
        solve(replace(problem, usage_limit=float(limit)), "ilp")
    assert caught.value.smallest_usage == min(peaks)


@pytest.mark.parametrize("n_nodes", [1, 40])
def test_a_start_is_the_first_incumbent(n_nodes):
    problem = lazy(n_nodes, None)
    start = (1,) * n_nodes
    solution = solve(problem, "ilp", start=start)
    assert solution.trace[0].objective == evaluate(problem, start).cost
    assert solution.objective <= solution.trace[0].objective


def test_costs_that_differ_by_more_than_solvers_can_tell_are_solved():
    costs = (np.array([1e-4, 1e17]), np.array([1e17, 2e-4]))
    table = np.array([[0.0, 1e-4], [1e17, 0.0]])
    problem = Problem(costs, ((0, 1),), (table,), (np.zeros(2),) * 2, ((0, 0), (0, 0)))
    solution = solve(problem, "ilp")
    assert solution.choice == (0, 1)
    assert solution.lower_bound <= solution.objective == pytest.approx(4e-4)


def test_no_time_is_no_solution_rather_than_a_long_one():
    with pytest.raises(InfeasibleError, match="found no choice"):
        solve(lazy(300, None), "ilp", time_s=1e-9)


def test_a_program_that_highs_looped_on_for_ever_is_solved():
    """Its presolve looped, ignoring the time limit, if the e of an edge had no upper bound."""
    inf = math.inf
    problem = Problem(
        ([7, 0], [1, 2, 5], [4, 2, 6, 0], [4, 0, 2, 1], [7, 9, 5, 4]),
        ((1, 2), (2, 1), (3, 1)),
        (
            [[7, inf, 5, inf], [inf, inf, 3, 3], [inf, inf, 5, 9]],
            [[inf, inf, inf], [5, inf, 3], [3, inf, inf], [inf, inf, 6]],
            [[inf, inf, 5], [3, inf, 6], [4, 5, 4], [2, 4, inf]],
        ),
        ([4, 0], [2, 7, 2], [1, 4, 5, 4], [1, 6, 0, 4], [3, 3, 9, 3]),
        ((3, 4), (3, 6), (2, 3), (2, 3), (2, 5)),
        0.0,
    )
    with pytest.raises(InfeasibleError, match="smallest peak usage found is 7") as caught:
        solve(problem, "ilp")
    assert caught.value.smallest_usage == 7.0


@given(problems())
def test_every_column_has_an_upper_bound(problem):
    """If a column has none, HiGHS may loop for ever."""
    linear = Linear(problem)
    for milp in (linear.cheapest(1.0, Live(problem), []), linear.leanest(1.0, Live(problem), [])):
        assert np.isfinite(milp.upper).all()


def test_what_a_watcher_raises_ends_highs():
    problem = lazy(24, 36.0)

    def interrupt(incumbent):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve(problem, "ilp", progress=interrupt)


def test_a_ctrl_c_that_comes_while_highs_runs_is_heard_when_its_time_is_up_at_the_latest():
    # A process that a shell starts in the background ignores SIGINT, and Python keeps it so.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    rng = np.random.default_rng(0)
    n, q = 300, 8
    edges = tuple((i, int(j)) for i in range(n) for j in rng.choice(n, 3) if i != j)
    problem = Problem(
        tuple(rng.integers(0, 100, q).astype(float) for _ in range(n)),
        edges,
        tuple(rng.integers(0, 100, (q, q)).astype(float) for _ in edges),
        (np.zeros(q),) * n,
        ((0, 0),) * n,
    )
    timer = Timer(1.0, signal.raise_signal, [signal.SIGINT])
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            solve(problem, "ilp", 4.0)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)


@given(problems(limited=False))
def test_choices_are_read_back_from_their_points(problem):
    linear = Linear(problem)
    choice = [len(cost) - 1 for cost in problem.node_costs]
    assert linear.choice(linear.point(choice, linear.n_columns)) == choice


@given(problems(limited=False))
def test_the_program_prices_every_choice_as_evaluate_does(problem):
    choice = [len(cost) // 2 for cost in problem.node_costs]
    cost = evaluate(problem, choice).cost
    linear = Linear(problem)
    milp = linear.cheapest(1.0, Live(problem), [])
    upper = milp.upper.copy()
    upper[: milp.n_integer] *= linear.point(choice, milp.n_integer)
    priced = solve_highs(
        replace(milp, upper=upper),
        time_s=60.0,
        nodes=None,
        seed=0,
        start=None,
        watch=lambda x, bound: True,
    )
    if math.isinf(cost):
        assert priced.x is None
    else:
        assert priced.bound == pytest.approx(cost)
        assert linear.choice(priced.x) == choice


def test_variables_are_of_classes_not_of_strategies():
    zero = np.zeros(50)
    rows = np.tile(np.arange(50.0) % 2, (50, 1))
    rows[25:] *= 3.0
    problem = Problem((zero, zero), ((0, 1),), (rows,), (zero, zero), ((0, 0), (0, 0)))
    assert Linear(problem).n_columns == 2 * 50 + 2 * 2


def test_rows_that_differ_by_a_constant_are_one_class():
    table = np.arange(4.0)[:, None] + np.arange(5.0)
    problem = Problem(
        (np.zeros(4), np.zeros(5)), ((0, 1),), (table,), (np.zeros(4), np.zeros(5)), ((0, 0),) * 2
    )
    assert Linear(problem).n_columns == 4 + 5


@given(problems())
def test_live_sets_hold_every_peak(problem):
    live = Live(problem)
    sets = [set(live.alive(time).tolist()) for time in range(len(live.times))]
    for time in range(8):
        alive = {n for n, (a, b) in enumerate(problem.intervals) if a <= time < b}
        assert not alive or any(alive <= group for group in sets)
    for one in sets:
        assert not any(one < other for other in sets)


@given(problems())
def test_usage_at_the_times_that_matter_has_the_peak(problem):
    choice = [0] * problem.n_nodes
    used = Live(problem).used(choice)
    assert used.max(initial=0.0) == pytest.approx(evaluate(problem, choice).peak_usage)


def test_a_program_that_highs_refuses_is_a_fault_of_ours():
    problem = Problem([np.zeros(2)], [], [], [np.zeros(2)], [(0, 1)])
    milp = Linear(problem).cheapest(1.0, Live(problem), [])
    milp = replace(milp, starts=milp.starts + 9)
    with pytest.raises(InternalError, match="it refused one of 2 columns and 1 rows"):
        solve_highs(milp, time_s=1.0, nodes=None, seed=0, start=None, watch=lambda x, bound: True)
