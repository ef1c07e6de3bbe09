from dataclasses import replace
from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pipesched import (
    Action,
    ArgumentError,
    Costs,
    Kind,
    Schedule,
    check,
    delay_weight_gradients,
    make,
    simulate,
    with_communication,
)
from pipesched.testing import costs_of, made, schedules, steps


@st.composite
def problems(draw: st.DrawFn) -> tuple[Schedule, Costs]:
    schedule = draw(made() | schedules() | steps(communicates=False))
    assume(schedule.backward and not schedule.updates)
    return schedule, draw(costs_of(schedule))


def without_weight_gradients(schedule: Schedule) -> list[list[tuple[str, int, int | None]]]:
    """Each rank's other actions, with I for whole backwards."""
    return [
        [(a.kind.replace("B", "I"), a.stage, a.microbatch) for a in row if a.kind != "W"]
        for row in schedule.ranks
    ]


def at_once(schedule: Schedule) -> Schedule:
    """With every weight gradient directly after its input gradient."""
    ranks = []
    for row in schedule.ranks:
        order = []
        for action in row:
            if action.kind in (Kind.BACKWARD, Kind.INPUT_GRADIENT):
                order.append(replace(action, kind=Kind.INPUT_GRADIENT))
                order.append(replace(action, kind=Kind.WEIGHT_GRADIENT))
            elif action.kind is not Kind.WEIGHT_GRADIENT:
                order.append(action)
        ranks.append(tuple(order))
    return replace(schedule, ranks=tuple(ranks))


@settings(max_examples=max(100, settings().max_examples // 5))
@given(problems())
def test_only_weight_gradients_move(problem: tuple[Schedule, Costs]) -> None:
    delayed = delay_weight_gradients(*problem)
    check(delayed)
    assert without_weight_gradients(delayed) == without_weight_gradients(problem[0])


@settings(max_examples=max(100, settings().max_examples // 5))
@given(problems())
def test_is_never_slower(problem: tuple[Schedule, Costs]) -> None:
    schedule, costs = problem
    makespan_s = simulate(delay_weight_gradients(schedule, costs), costs).makespan_s
    for other in (schedule, at_once(schedule)):
        assert makespan_s <= simulate(other, costs).makespan_s * (1 + 1e-8)


@pytest.mark.parametrize("seconds", [(1, 1, 1), (4, 4, 2), (2, 3, 2), (3, 2, 1)], ids=str)
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2"])
def test_no_weight_gradient_could_run_an_action_earlier(
    name: str, seconds: tuple[int, int, int]
) -> None:
    """Delays the least: whichever ran before the action that it now follows costs time."""
    f, i, w = seconds
    for transfer_s, latency_s in product(range(4), repeat=2):
        costs = Costs(
            f, input_gradient_s=i, weight_gradient_s=w, transfer_s=transfer_s, latency_s=latency_s
        )
        assert_delays_the_least(delay_weight_gradients(make(name, 4, 6), costs), costs)


def assert_delays_the_least(delayed: Schedule, costs: Costs) -> None:
    makespan_s = simulate(delayed, costs).makespan_s
    for rank, row in enumerate(delayed.ranks):
        for position in range(1, len(row)):
            before, w = row[position - 1], row[position]
            if w.kind is not Kind.WEIGHT_GRADIENT or before.kind is Kind.WEIGHT_GRADIENT:
                continue
            if before == Action(Kind.INPUT_GRADIENT, w.stage, w.microbatch):
                continue
            swapped = (*row[: position - 1], w, before, *row[position + 1 :])
            ranks = (*delayed.ranks[:rank], swapped, *delayed.ranks[rank + 1 :])
            earlier = simulate(replace(delayed, ranks=ranks), costs)
            assert earlier.makespan_s > makespan_s


@pytest.mark.parametrize("transfer_s", [0.25, 0.5, 0.75])
def test_covers_transfers_up_to_a_weight_gradient(transfer_s: float) -> None:
    """What is left of each is the way there and back, once: the section's claim, for two stages."""
    costs = Costs(1.0, 2.0, transfer_s=transfer_s)
    delayed = delay_weight_gradients(make("eager-1f1b", 2, 8), costs)
    assert simulate(delayed, costs).makespan_s == 25.0 + transfer_s


def test_what_needs_no_delay_gets_none() -> None:
    costs = Costs(1.0, 2.0, latency_s=0.5)
    delayed = delay_weight_gradients(make("gpipe", 4, 8), costs)
    assert delayed == at_once(make("gpipe", 4, 8))


@pytest.mark.parametrize(
    ("schedule", "got"),
    [
        (make("inference", 2, 2), "got inference with backward=False"),
        (with_communication(make("1f1b", 2, 2)), "communicates=True"),
    ],
    ids=["no backward", "transfers"],
)
def test_other_schedules_are_refused(schedule: Schedule, got: str) -> None:
    with pytest.raises(ArgumentError, match=got):
        delay_weight_gradients(schedule, Costs(1.0, 2.0))
