from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipesched import (
    ArgumentError,
    Costs,
    InfeasibleError,
    Placement,
    Schedule,
    chain,
    check,
    make,
    search,
    simulate,
)
from pipesched.testing import costs_of, optimum_s
from scipy.optimize import Bounds, LinearConstraint, milp

heavy = settings(max_examples=max(1, settings().max_examples // 4))


@st.composite
def problems(
    draw: st.DrawFn, *, max_stages: int, max_microbatches: int, placed: bool = True
) -> tuple[Schedule, Costs]:
    """A schedule without actions, and costs of its stages and edges."""
    n_stages = draw(st.integers(1, max_stages))
    n_microbatches = draw(st.integers(1, max_microbatches))
    placements = [Placement.linear(n_stages)]
    if placed and n_stages % 2 == 0:
        placements += [Placement.v(n_stages // 2), Placement.looped(n_stages // 2, 2)]
    placement = draw(st.sampled_from(placements))
    skips = [(0, n_stages - 1)] if n_stages > 2 and draw(st.booleans()) else []
    ranks = ((),) * placement.n_ranks
    empty = Schedule("empty", n_stages, n_microbatches, ranks, placement, chain(n_stages, skips))
    return empty, draw(costs_of(empty))


def least_bytes(empty: Schedule, costs: Costs, *, parameters: bool) -> list[float]:
    """What each rank needs for one microbatch."""
    names = ("activation_bytes", "weight_gradient_bytes", "parameter_bytes")
    whole, kept, fixed = (costs.sizes(name, empty.n_stages) for name in names)
    return [
        sum(
            max(whole[stage], kept[stage]) + parameters * fixed[stage]
            for stage in empty.placement.stages_of(rank)
        )
        for rank in range(len(empty.ranks))
    ]


@given(problems(max_stages=6, max_microbatches=8), st.booleans(), st.data())
@heavy
def test_what_is_found_runs_in_the_time_and_memory_that_it_says(
    problem: tuple[Schedule, Costs], split: bool, data: st.DataObject
) -> None:
    empty, costs = problem
    bounds = [b + data.draw(st.integers(0, 60)) for b in least_bytes(empty, costs, parameters=True)]
    found = search(
        empty.n_stages,
        empty.n_microbatches,
        costs,
        memory_bytes=bounds,
        placement=empty.placement,
        edges=empty.edges,
        split_backward=split,
        steps=300,
    )
    fixed = costs.sizes("parameter_bytes", empty.n_stages)
    check(
        found.schedule,
        memory_bytes=[
            bound - sum(fixed[stage] for stage in empty.placement.stages_of(rank))
            for rank, bound in enumerate(bounds)
        ],
        activation_bytes=costs.sizes("activation_bytes", empty.n_stages),
        weight_gradient_bytes=costs.sizes("weight_gradient_bytes", empty.n_stages),
    )
    assert simulate(found.schedule, costs).makespan_s == found.makespan_s
    assert 0 <= found.lower_bound_s <= found.makespan_s
    assert found.schedule.placement == empty.placement
    assert found.schedule.edges == empty.edges
    makespans_s = [makespan_s for _, makespan_s, _ in found.trace]
    assert makespans_s[-1] == found.makespan_s
    assert all(before > after for before, after in pairwise(makespans_s))


@given(problems(max_stages=3, max_microbatches=2, placed=False), st.booleans(), st.data())
@heavy
def test_small_pipelines_are_solved_to_the_optimum(
    problem: tuple[Schedule, Costs], split: bool, data: st.DataObject
) -> None:
    empty, costs = problem
    split = split and empty.n_stages < 3
    compare_with_enumeration(empty, costs, split, data)


@given(st.data())
@settings(max_examples=max(1, settings().max_examples // 50))
def test_two_chunks_a_rank_are_solved_to_the_optimum(data: st.DataObject) -> None:
    placement = data.draw(st.sampled_from([Placement.v(2), Placement.looped(2, 2)]))
    empty = Schedule("empty", 4, 2, ((), ()), placement)
    compare_with_enumeration(empty, data.draw(costs_of(empty)), False, data)


def test_a_rank_may_do_better_to_wait_than_to_take_a_link() -> None:
    """Where no rank waits so, see `Moves.may_wait`, the best takes 59 s."""
    costs = Costs(
        [2, 0, 0, 4],
        [6, 6, 3, 3],
        transfer_s=dict(zip(chain(4), [3, 0, 4, 4, 0, 0], strict=True)),
        activation_bytes=[1, 3, 1, 2],
    )
    placement = Placement.looped(2, 2)
    found = search(4, 2, costs, memory_bytes=[4, 7], placement=placement)
    empty = Schedule("empty", 4, 2, ((), ()), placement)
    best_s = optimum_s(empty, costs, [4, 7], split=False)
    assert found.makespan_s == found.lower_bound_s == best_s == 55


def test_a_rank_may_do_better_to_wait_than_to_take_memory() -> None:
    """Where no rank waits so, the best takes 75 s."""
    costs = Costs([5, 3, 3, 0], [1, 2, 8, 3], latency_s=2, activation_bytes=[3, 2, 1, 3])
    placement = Placement.looped(2, 2)
    found = search(4, 3, costs, memory_bytes=[9, 7], placement=placement)
    assert found.makespan_s == found.lower_bound_s == 70


def compare_with_enumeration(
    empty: Schedule, costs: Costs, split: bool, data: st.DataObject
) -> None:
    costs = replace(costs, parameter_bytes=0)
    bounds = [
        b + data.draw(st.integers(0, 40)) for b in least_bytes(empty, costs, parameters=False)
    ]
    found = search(
        empty.n_stages,
        empty.n_microbatches,
        costs,
        memory_bytes=bounds,
        placement=empty.placement,
        edges=empty.edges,
        split_backward=split,
        steps=20_000,
    )
    best_s = optimum_s(empty, costs, bounds, split=split)
    assert (found.makespan_s, found.lower_bound_s) == (best_s, best_s)


@given(st.integers(2, 3), st.integers(2, 4), st.integers(1, 4), st.data())
@settings(max_examples=max(1, settings().max_examples // 10))
def test_agrees_with_an_integer_program(
    n_stages: int, n_microbatches: int, cap: int, data: st.DataObject
) -> None:
    seconds = st.lists(st.integers(1, 6), min_size=n_stages, max_size=n_stages)
    forward_s, backward_s = data.draw(seconds), data.draw(seconds)
    latency_s = data.draw(st.integers(0, 3))
    found = search(
        n_stages,
        n_microbatches,
        Costs(forward_s, backward_s, latency_s=latency_s),
        activation_cap=cap,
        steps=20_000,
    )
    best_s = solve_by_highs(forward_s, backward_s, latency_s, n_microbatches, cap)
    assert found.makespan_s == found.lower_bound_s == pytest.approx(best_s)


def solve_by_highs(
    forward_s: list[int], backward_s: list[int], latency_s: int, n_microbatches: int, cap: int
) -> float:
    """The least makespan of whole backwards on a chain, as a disjunctive program.

    Variables: the start of every action, the makespan, and for every forward and backward of one
    stage which of them is first. Microbatches are in order.
    """
    n, m = len(forward_s), n_microbatches
    seconds = [*forward_s, *reversed(backward_s)]  # by step of the way
    n_starts = 2 * n * m
    first = {
        (s, i, j): n_starts + 1 + (s * m + i) * m + j
        for s in range(n)
        for i in range(m)
        for j in range(m)
    }
    n_variables = n_starts + 1 + len(first)
    horizon_s = sum(seconds) * m + 2 * n * latency_s * m
    rows, least = [], []

    def after(
        later: int, earlier: int, gap_s: float, unless: tuple[int, bool] | None = None
    ) -> None:
        """later - earlier >= gap_s, unless a variable has a value."""
        row = np.zeros(n_variables)
        row[later] += 1
        row[earlier] -= 1
        if unless is not None:
            variable, value = unless
            row[variable] = horizon_s if value else -horizon_s
            gap_s -= 0 if value else horizon_s
        rows.append(row)
        least.append(gap_s)

    for step, step_s in enumerate(seconds):
        for k in range(m):
            here = step * m + k
            after(n_starts, here, step_s)
            if k:
                after(here, here - 1, step_s)
            if step:
                way_s = 0 if step == n else latency_s
                after(here, here - m, seconds[step - 1] + way_s)
    for s in range(n):
        back = 2 * n - 1 - s
        for j in range(m - cap):
            after(s * m + j + cap, back * m + j, seconds[back])
        for i in range(m):
            for j in range(m):
                forward, backward = s * m + i, back * m + j
                after(backward, forward, seconds[s], unless=(first[s, i, j], True))
                after(forward, backward, seconds[back], unless=(first[s, i, j], False))
    objective = np.zeros(n_variables)
    objective[n_starts] = 1
    upper = np.ones(n_variables)
    upper[: n_starts + 1] = horizon_s
    solution = milp(
        objective,
        constraints=LinearConstraint(np.array(rows), lb=np.array(least)),
        integrality=np.arange(n_variables) > n_starts,
        bounds=Bounds(np.zeros(n_variables), upper),
        # With it, HiGHS 1.12.0 calls 13 optimal where 11 is (3 stages, 2 microbatches, cap 2,
        # F = 1, 1, 1 and B = 1, 3, 1, integer times).
        options={"presolve": False},
    )
    assert solution.success
    return float(solution.fun)


@pytest.mark.parametrize(
    ("latency_s", "cap", "makespan_s"), [(1, 7, 72), (1, 4, 80), (2, 7, 78), (2, 4, 92)]
)
def test_four_stages_and_eight_microbatches_are_optimal(
    latency_s: int, cap: int, makespan_s: int
) -> None:
    found = search(4, 8, Costs(2, 4, latency_s=latency_s), activation_cap=cap)
    assert (found.makespan_s, found.gap) == (makespan_s, 0.0)


@given(st.sampled_from(["gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2"]), st.data())
@heavy
def test_never_worse_than_the_known_schedules_at_their_memory(
    name: str, data: st.DataObject
) -> None:
    known = make(name, data.draw(st.integers(1, 5)), data.draw(st.integers(1, 8)))
    costs = replace(data.draw(costs_of(known)), parameter_bytes=0, message_bytes=0)
    timeline = simulate(known, costs)
    split = name.startswith("zb")
    found = search(
        known.n_stages,
        known.n_microbatches,
        costs,
        memory_bytes=max_bytes(known, costs),
        split_backward=split,
        steps=1,
    )
    assert found.makespan_s <= timeline.makespan_s


def max_bytes(schedule: Schedule, costs: Costs) -> list[float]:
    """What a schedule takes, and what any takes for one microbatch."""
    least = least_bytes(schedule, costs, parameters=False)
    return [max(pair) for pair in zip(simulate(schedule, costs).peak_bytes, least, strict=True)]


@pytest.mark.parametrize(
    ("name", "n_stages", "placement"),
    [
        ("zb-v", 6, Placement.v(3)),
        ("v-min", 6, Placement.v(3)),
        ("interleaved-1f1b", 6, Placement.looped(3, 2)),
        ("dualpipe", 4, Placement.bidirectional(4, 8)),
        ("chimera", 4, Placement.bidirectional(4, 8)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_never_worse_than_the_known_schedules_of_other_placements(
    name: str, n_stages: int, placement: Placement
) -> None:
    known = make(name, n_stages, 8)
    costs = Costs(2, 4, latency_s=1)
    timeline = simulate(known, costs)
    found = search(
        n_stages,
        8,
        costs,
        activation_cap=timeline.peak_bytes,
        placement=placement,
        split_backward=True,
        steps=1,
    )
    assert found.makespan_s <= timeline.makespan_s


def test_more_steps_are_never_worse() -> None:
    costs = Costs([3, 2, 4, 2], [5, 7, 4, 6], transfer_s=1, latency_s=1)
    few, many = (search(4, 12, costs, activation_cap=4, steps=steps) for steps in (1, 10_000))
    assert many.makespan_s <= few.makespan_s
    assert many.lower_bound_s >= few.lower_bound_s


def test_a_bound_counts_parameters_beside_activations() -> None:
    costs = Costs(2, 4, activation_bytes=10, parameter_bytes=100)
    found = search(2, 4, costs, memory_bytes=120)
    assert simulate(found.schedule, costs).peak_bytes == (120, 110)


def test_a_bound_too_small_for_one_microbatch_is_refused() -> None:
    costs = Costs(2, 4, activation_bytes=10, parameter_bytes=100)
    with pytest.raises(InfeasibleError, match="got 5 left on rank 0, where one takes 10; raise"):
        search(2, 4, costs, memory_bytes=105)


def test_both_bounds_are_refused() -> None:
    with pytest.raises(ArgumentError, match="in microbatches or in bytes, not in both; got"):
        search(2, 4, Costs(1, 1), activation_cap=1, memory_bytes=1)


def test_a_bound_for_each_rank() -> None:
    with pytest.raises(ArgumentError, match="or one for each of 2; got 3 numbers"):
        search(2, 4, Costs(1, 1), activation_cap=[1, 2, 3])


def test_what_takes_no_time_has_no_gap() -> None:
    assert search(2, 2, Costs(0, 0)).gap == 0.0


def test_a_rank_that_waits_for_its_sends_may_start_something_shorter_first() -> None:
    """All orders were tried: 64 s. Without its sends, an action seems to end too early to wait."""
    transfers = dict(zip(chain(3), [3, 2, 0, 0], strict=True))
    latencies = dict(zip(chain(3), [5, 4, 1, 1], strict=True))
    costs = Costs(
        [4, 1, 1],
        [1, 1, 8],
        transfer_s=transfers,
        latency_s=latencies,
        overlap=False,
        activation_bytes=[4, 2, 1],
    )
    found = search(3, 3, costs, memory_bytes=[9, 8, 5])
    assert (found.makespan_s, found.lower_bound_s) == (64.0, 64.0)
