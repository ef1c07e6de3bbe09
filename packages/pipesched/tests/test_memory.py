from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipesched import (
    Action,
    Costs,
    Edge,
    Event,
    Kind,
    Placement,
    Schedule,
    Timeline,
    eager_1f1b,
    gpipe,
    simulate,
)
from pipesched.testing import costs_of, edge_sets, schedules, steps


@given(st.data())
def test_activations_are_held_from_forward_to_backward(data: st.DataObject) -> None:
    schedule = data.draw(schedules())
    costs = data.draw(costs_of(schedule))
    timeline = simulate(schedule, costs)
    sizes = costs.sizes("activation_bytes", schedule.n_stages)
    ran = {event.action: event for event in timeline.events}
    for rank, curve in enumerate(timeline.memory()):
        for time_s, held in {h.time_s: h for h in curve}.items():  # the last change of each time
            assert held.activation_bytes == sum(
                sizes[action.stage]
                for action, event in ran.items()
                if event.rank == rank and action.kind is Kind.FORWARD
                if event.start_s <= time_s < ran[replace(action, kind=Kind.BACKWARD)].stop_s
            )


@given(st.data())
def test_messages_are_held_by_who_made_them_and_then_by_who_uses_them(data: st.DataObject) -> None:
    schedule = data.draw(schedules())
    schedule = replace(schedule, edges=data.draw(edge_sets(schedule.n_stages)))
    costs = data.draw(costs_of(schedule))
    timeline = simulate(schedule, costs)
    ran = {event.action: event for event in timeline.events}
    moved = {(t.edge, t.microbatch): t for t in timeline.transfers}

    def held(rank: int, time_s: float, edge: Edge, microbatch: int) -> float:
        made, used = (ran[Action(*end, microbatch)] for end in (edge.src, edge.dst))
        transfer = moved.get((edge, microbatch))
        spans = [(made.rank, made.stop_s, used.stop_s)]
        if transfer is not None:
            spans = [(made.rank, made.stop_s, transfer.left_s)]
            spans += [(used.rank, transfer.stop_s, used.stop_s)]
        times = sum(rank == r and start <= time_s < stop for r, start, stop in spans)
        return times * costs.edge_bytes(edge)

    for rank, curve in enumerate(timeline.memory()):
        for time_s, now in {h.time_s: h for h in curve}.items():
            assert now.message_bytes == sum(
                held(rank, time_s, edge, m)
                for edge in schedule.edges
                for m in range(schedule.n_microbatches)
            )


@given(st.data())
def test_nothing_is_negative_and_only_parameters_are_left(data: st.DataObject) -> None:
    schedule = data.draw(steps(communicates=None))
    costs = data.draw(costs_of(schedule))
    parameters = costs.sizes("parameter_bytes", schedule.n_stages)
    for rank, curve in enumerate(simulate(schedule, costs).memory()):
        fixed = sum(parameters[stage] for stage in schedule.placement.stages_of(rank))
        assert all(min(held) >= 0 and held.parameter_bytes == fixed for held in curve)
        assert curve[0][1:] == curve[-1][1:] == (0, 0, 0, fixed)
        assert [held.time_s for held in curve] == sorted(held.time_s for held in curve)


@given(st.data())
def test_peak_of_one_byte_each_is_the_microbatches_in_flight(data: st.DataObject) -> None:
    timeline = simulate(data.draw(schedules()), Costs(1.0, 2.0))
    assert timeline.peak_bytes == timeline.peak_in_flight


def hand_made(row: str, costs: Costs) -> Timeline:
    """One rank's list as it runs without a break (the checker is not asked)."""
    events, stop_s = [], 0.0
    for action in map(Action.parse, row.split()):
        start_s, stop_s = stop_s, stop_s + costs.seconds(action.kind, 1)[0]
        events.append(Event(0, action, start_s, stop_s))
    schedule = Schedule("by-hand", 1, 2, (tuple(event.action for event in events),))
    return Timeline(schedule, costs, tuple(events), ())


SPLIT = Costs(1.0, 2.0, activation_bytes=10, weight_gradient_bytes=4)


def test_a_weight_gradient_keeps_its_part_of_the_activations() -> None:
    timeline = hand_made("F0.0 I0.0 F0.1 I0.1 W0.0 W0.1", SPLIT)
    held = [(h.time_s, h.activation_bytes, h.weight_gradient_bytes) for h in timeline.memory()[0]]
    assert held == [
        (0.0, 0, 0),
        (0.0, 10, 0),
        (2.0, 0, 0),
        (2.0, 0, 4),
        (2.0, 10, 4),
        (4.0, 0, 4),
        (4.0, 0, 8),
        (5.0, 0, 4),
        (6.0, 0, 0),
    ]
    assert (timeline.peak_in_flight, timeline.peak_weight_gradients) == ((1,), (2,))


def test_recomputed_forwards_keep_their_checkpoints() -> None:
    costs = replace(SPLIT, checkpoint_bytes=1)
    timeline = hand_made("F0.0 F0.1 R0.0 B0.0 R0.1 B0.1", costs)
    held = [h.activation_bytes for h in timeline.memory()[0]]
    assert held == [0, 1, 2, 11, 1, 10, 0]


def test_without_backwards_forwards_keep_nothing() -> None:
    forwards = tuple(a for a in gpipe(1, 3).ranks[0] if a.kind is Kind.FORWARD)
    schedule = Schedule("inference", 1, 3, (forwards,), backward=False)
    events = tuple(Event(0, action, m, m + 1) for m, action in enumerate(forwards))
    timeline = Timeline(schedule, Costs(1.0), events, ())
    assert (timeline.peak_in_flight, timeline.peak_bytes) == ((1,), (1,))


def test_every_copy_of_a_stage_has_its_parameters() -> None:
    both_ways = Placement.bidirectional(2, n_microbatches=2)
    schedule = Schedule("both-ways", 2, 2, ((), ()), both_ways)
    timeline = Timeline(schedule, Costs(1.0, parameter_bytes=[3, 5]), (), ())
    assert timeline.peak_bytes == (8, 8)


def test_peaks_of_eager_1f1b() -> None:
    costs = Costs(1.0, 2.0, transfer_s=0.5, activation_bytes=7, parameter_bytes=100)
    assert simulate(eager_1f1b(3, 8), costs).peak_bytes == (135, 121, 107)


@pytest.mark.parametrize("overlap", [True, False])
def test_bytes_count_once_on_each_side(overlap: bool) -> None:
    """Rank 0 holds F0's result for 2 s while it leaves; rank 1 from its arrival to F1's end."""
    costs = Costs(1, 1, transfer_s=2, latency_s=3, message_bytes=5, overlap=overlap)
    left, right = simulate(gpipe(2, 1), replace(costs, activation_bytes=0)).memory()
    assert [(h.time_s, h.message_bytes) for h in left if h.message_bytes] == [(1, 5), (13, 5)]
    assert [(h.time_s, h.message_bytes) for h in right if h.message_bytes] == [(6, 5), (8, 5)]
