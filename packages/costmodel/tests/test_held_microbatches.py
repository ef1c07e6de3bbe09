"""Microbatches in flight, against schedules that are written out here and run."""

import itertools

import pytest
from costmodel import InFlight, QuantityError, UnknownNameError, in_flight
from costmodel.memory.held_microbatches import SCHEDULES
from hypothesis import given
from hypothesis import strategies as st

# An order is what a rank does, one after the other: (kind, chunk, microbatch). "B" is the gradient
# of the input, "W" that of the weights; where they are not apart, W follows B at once, and the
# previous stage waits for both.


def whole(warm_up, n_microbatches):
    """`warm_up` forwards, then backwards and forwards in turn, as long as there are any."""
    warm_up = min(warm_up, n_microbatches)
    yield from (("F", 0, m) for m in range(warm_up))
    for m in range(n_microbatches):
        yield from (("B", 0, m), ("W", 0, m))
        if m + warm_up < n_microbatches:
            yield "F", 0, m + warm_up


def apart(warm_up, delay, n_microbatches):
    """The same, but each W comes `delay` backwards later."""
    warm_up = min(warm_up, n_microbatches)
    yield from (("F", 0, m) for m in range(warm_up))
    for m in range(n_microbatches + delay):
        if m < n_microbatches:
            yield "B", 0, m
        if 0 <= m - delay < n_microbatches:
            yield "W", 0, m - delay
        if m + warm_up < n_microbatches:
            yield "F", 0, m + warm_up


def interleaved(stage, n_stages, n_microbatches, n_chunks):
    """Narayanan et al., SC 2021, figure 4, as Megatron-LM counts its warm-up."""
    n = n_chunks * n_microbatches
    chunk_of = [k // n_stages % n_chunks for k in range(n)]
    of_round = [k // (n_stages * n_chunks) * n_stages + k % n_stages for k in range(n)]
    forwards = [("F", chunk_of[k], of_round[k]) for k in range(n)]
    backwards = [("B", n_chunks - 1 - chunk_of[k], of_round[k]) for k in range(n)]
    warm_up = min(2 * (n_stages - stage - 1) + (n_chunks - 1) * n_stages, n)
    yield from forwards[:warm_up]
    for forward, backward in itertools.zip_longest(forwards[warm_up:], backwards):
        if forward:
            yield forward
        yield backward
        yield "W", *backward[1:]


def orders(schedule, n_stages, n_microbatches, n_chunks=1):
    s, m = n_stages, n_microbatches
    of_stage = {
        "gpipe": lambda i: whole(m, m),
        "1f1b": lambda i: whole(s - i, m),
        "eager-1f1b": lambda i: whole(2 * (s - i - 1) + 1, m),
        "interleaved": lambda i: interleaved(i, s, m, n_chunks),
        "zb-h1": lambda i: apart(s - i, i, m),
        "zb-h2": lambda i: apart(2 * (s - i) - 1, 2 * i, m),
    }
    return [list(of_stage[schedule](i)) for i in range(s)]


def run(orders, n_chunks=1, *, sent_after="W"):
    """Start times at one second an action; fails if the ranks wait for one another for ever."""
    n_stages = len(orders)
    last = n_stages * n_chunks - 1
    done, starts = {}, [[] for _ in orders]
    while any(len(order) > len(begun) for order, begun in zip(orders, starts, strict=True)):
        before = len(done)
        for rank, order in enumerate(orders):
            for kind, chunk, m in order[len(starts[rank]) :]:
                at = chunk * n_stages + rank
                needs = {
                    "F": [("F", at - 1, m)] * (at > 0),
                    "B": [("F", at, m), *[(sent_after, at + 1, m)] * (at < last)],
                    "W": [("B", at, m)],
                }[kind]
                if not all(need in done for need in needs):
                    break
                free = starts[rank][-1] + 1 if starts[rank] else 0
                starts[rank].append(max([free, *(done[need] for need in needs)]))
                done[kind, at, m] = starts[rank][-1] + 1
        assert len(done) > before, "deadlock"
    return starts


def most_held(order, activation, weight_gradient):
    """Peak bytes of one rank; a B turns an activation into what W needs."""
    change = {"F": activation, "B": weight_gradient - activation, "W": -weight_gradient}
    return max(itertools.accumulate(change[kind] for kind, _, _ in order))


def bubbles(starts):
    end = max(map(max, starts)) + 1
    return {end - len(begun) for begun in starts}


sizes = st.tuples(st.integers(1, 6), st.integers(1, 14))
APART = ("zb-h1", "zb-h2")


@pytest.mark.parametrize("schedule", sorted({*SCHEDULES} - {*APART, "interleaved", "inference"}))
@given(sizes=sizes)
def test_counts_are_those_of_the_schedule_written_out(schedule, sizes):
    written = orders(schedule, *sizes)
    run(written)
    for stage, order in enumerate(written):
        held = in_flight(schedule, stage, *sizes)
        assert held == InFlight(most_held(order, activation=1, weight_gradient=0))


@given(n_stages=st.integers(1, 5), rounds=st.integers(1, 3), n_chunks=st.integers(2, 4))
def test_counts_of_interleaved_chunks_are_those_of_the_schedule_written_out(
    n_stages, rounds, n_chunks
):
    n_microbatches = rounds * n_stages
    written = orders("interleaved", n_stages, n_microbatches, n_chunks)
    run(written, n_chunks)
    for stage, order in enumerate(written):
        held = in_flight("interleaved", stage, n_stages, n_microbatches, n_chunks=n_chunks)
        assert held == InFlight(most_held(order, activation=1, weight_gradient=0))


@pytest.mark.parametrize("schedule", APART)
@given(sizes=sizes, waiting=st.integers(0, 100), more=st.integers(0, 100))
def test_bytes_of_separate_weight_gradients_are_those_of_the_schedule_written_out(
    schedule, sizes, waiting, more
):
    activation = waiting + more
    written = orders(schedule, *sizes)
    run(written, sent_after="B")
    for stage, order in enumerate(written):
        n_bytes = in_flight(schedule, stage, *sizes).n_bytes(activation, waiting)
        assert n_bytes == most_held(order, activation, waiting)


@pytest.mark.parametrize("schedule", APART)
@given(sizes=sizes, activation=st.integers(0, 100), more=st.integers(1, 100))
def test_bytes_are_a_bound_where_weight_gradients_take_more_than_activations(
    schedule, sizes, activation, more
):
    for stage, order in enumerate(orders(schedule, *sizes)):
        n_bytes = in_flight(schedule, stage, *sizes).n_bytes(activation, activation + more)
        assert n_bytes >= most_held(order, activation, activation + more)


@pytest.mark.parametrize("n_stages", [2, 4, 7])
def test_the_schedules_written_out_have_the_bubbles_of_their_papers(n_stages):
    m = 3 * n_stages  # at one second for each of F, B, W: Zero Bubble, Table 2
    assert bubbles(run(orders("1f1b", n_stages, m))) == {3 * (n_stages - 1)}
    assert bubbles(run(orders("zb-h1", n_stages, m), sent_after="B")) == {n_stages - 1}
    # A parallelogram: no rank waits between its first and its last action.
    for begun in run(orders("zb-h2", n_stages, m), sent_after="B"):
        assert begun == list(range(begun[0], begun[0] + len(begun)))


@given(n_stages=st.integers(1, 9), rounds=st.integers(2, 4), n_chunks=st.integers(2, 4))
def test_interleaving_costs_the_first_stage_the_factor_of_korthikanti_et_al(
    n_stages, rounds, n_chunks
):
    p = n_stages
    held = in_flight("interleaved", 0, p, rounds * p, n_chunks=n_chunks).activations
    assert held / n_chunks == pytest.approx(p * (1 + (p - 1) / (p * n_chunks)))


@pytest.mark.parametrize(
    ("schedule", "formula"),
    [
        ("zb-h1", lambda p, i, mb, mw: (p - i + 1) * mb + (i - 1) * mw),
        ("zb-h2", lambda p, i, mb, mw: (2 * p - 2 * i + 1) * mb + (2 * i - 2) * mw),
    ],
)
def test_zero_bubble_schedules_hold_what_their_paper_prints(schedule, formula):
    p, mb, mw = 8, 34, 32
    for i in range(1, p + 1):
        held = in_flight(schedule, i - 1, p, 4 * p)
        assert held.n_bytes(mb, mw) == formula(p, i, mb, mw)


@pytest.mark.parametrize("i", [1, 2, 5])
def test_eager_1f1b_holds_what_the_cross_mesh_paper_prints(i):
    n_stages = 5
    assert in_flight("eager-1f1b", i - 1, n_stages, 99) == InFlight(2 * (n_stages - i) + 1)


def test_inference_keeps_nothing_for_a_backward():
    assert {in_flight("inference", i, 4, 32) for i in range(4)} == {InFlight(1)}


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(n_stages=st.integers(1, 8), rounds=st.integers(1, 4))
def test_later_stages_and_fewer_microbatches_hold_no_more(schedule, n_stages, rounds):
    n_chunks = 2 if schedule == "interleaved" else 1

    def held(stage, rounds):
        n = in_flight(schedule, stage, n_stages, rounds * n_stages, n_chunks=n_chunks)
        return n.n_bytes(34, 32)

    for stage in range(n_stages):
        assert held(stage, rounds) <= held(stage, rounds + 1)
        if stage:
            assert held(stage, rounds) <= held(stage - 1, rounds)


def test_rejects_a_schedule_it_does_not_know():
    message = "a schedule is one of gpipe, 1f1b, eager-1f1b, zb-h1, zb-h2, interleaved, inference; "
    with pytest.raises(UnknownNameError, match=message) as caught:
        in_flight("chimera", 0, 1, 1)
    assert caught.value.name == "chimera"


def test_rejects_a_stage_that_is_not_there():
    message = r"a stage lies in 0\.\.n_stages - 1; got stage=4 and n_stages=4"
    with pytest.raises(QuantityError, match=message):
        in_flight("1f1b", 4, 4, 8)


@pytest.mark.parametrize(("schedule", "n_chunks"), [("1f1b", 2), ("interleaved", 1)])
def test_rejects_chunks_that_the_schedule_does_not_have(schedule, n_chunks):
    message = f"n_chunks is >= 2 if interleaved and 1 otherwise; got {n_chunks} for '{schedule}'"
    with pytest.raises(QuantityError, match=message):
        in_flight(schedule, 0, 4, 8, n_chunks=n_chunks)


def test_rejects_interleaved_stages_that_do_not_divide_the_microbatches():
    message = "so they divide n_microbatches; got n_microbatches=6 and n_stages=4"
    with pytest.raises(QuantityError, match=message):
        in_flight("interleaved", 0, 4, 6, n_chunks=2)


@pytest.mark.parametrize("bad", [0, -1, 1.5, float("nan"), "2"], ids=repr)
def test_rejects_counts_that_count_nothing(bad):
    for name in ("n_stages", "n_microbatches", "n_chunks"):
        counts = {"stage": 0, "n_stages": 2, "n_microbatches": 2, name: bad}
        with pytest.raises(QuantityError, match=f"{name} is a finite whole number >= 1; got"):
            in_flight("1f1b", **counts)


@pytest.mark.parametrize("n_bytes", [(-1, 0), (0, -1)])
def test_rejects_negative_bytes(n_bytes):
    with pytest.raises(QuantityError, match="is a finite whole number >= 0; got -1"):
        InFlight(1).n_bytes(*n_bytes)
