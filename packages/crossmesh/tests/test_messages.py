from collections import Counter, defaultdict
from itertools import pairwise
from typing import get_args

from crossmesh import Order, TaskStrategy, plan
from crossmesh.testing import batches
from crossmesh.transfer.messages import program
from hypothesis import given
from hypothesis import strategies as st


@st.composite
def plans(draw: st.DrawFn):
    b = draw(batches())
    return plan(
        b.src, b.dst, b.dtype, b.hosts, b.links,
        strategy=draw(st.sampled_from(get_args(TaskStrategy))),
        order=draw(st.sampled_from(get_args(Order))),
        chunks=draw(st.integers(1, 5)),
        chunk_bytes=1,
    )  # fmt: skip


@given(plans())
def test_chunks_of_a_task_are_its_bytes_in_order_without_gap_or_overlap(made):
    parts = defaultdict(list)
    for chunk in program(made):
        parts[chunk.task].append(chunk.part)
    assert list(parts) == list(made.tasks)
    for task, of_task in parts.items():
        start, stop = task.part
        assert all(a[1] == b[0] for a, b in pairwise(of_task))
        assert all(a < b for a, b in of_task)
        assert of_task[0][0] == start
        assert of_task[-1][1] == (start + 1 if task.strategy == "signal" else stop)
        assert len(of_task) <= task.n_chunks + max(len(task.followers) - 1, 0)


@given(plans())
def test_a_device_sends_only_what_it_holds_or_got_before(made):
    for chunk in program(made):
        task = chunk.task
        adding = set(task.adders)
        for i, leg in enumerate(chunk.legs):
            before = [earlier for earlier in chunk.legs[:i] if earlier.receiver == leg.sender]
            assert leg.sender in adding or before
            if not leg.adds:  # from here on, the result is passed on
                whole = leg.sender == task.sender or any(not earlier.adds for earlier in before)
                assert whole
        assert sum(leg.adds for leg in chunk.legs) == len(task.terms) - 1


@given(plans())
def test_every_receiver_gets_the_result_once_and_every_term_is_added_once(made):
    for chunk in program(made):
        task = chunk.task
        got = Counter(leg.receiver for leg in chunk.legs if not leg.adds)
        assert got == Counter(task.followers)
        added = Counter(leg.sender for leg in chunk.legs if leg.adds)
        assert added == Counter(task.adders[:-1])


@given(plans())
def test_bytes_between_devices_are_those_of_the_plans_hops(made):
    # In messages, the shares of an all-gather end between elements, and averages of integers are
    # not combined on the way; in the plan's hops it is otherwise.
    passed, planned = defaultdict(Counter), defaultdict(Counter)
    for chunk in program(made):
        for leg in chunk.legs:
            passed[chunk.task][leg.receiver] += chunk.n_bytes
    for task in made.tasks:
        for hop in task.hops:
            planned[task][hop.receiver] += hop.n_bytes
    for task in made.tasks:
        if len(task.terms) == 1:
            assert passed[task] == planned[task]
        assert passed[task].total() == planned[task].total()


@given(plans(), st.data())
def test_the_program_of_some_devices_is_the_part_of_it_that_they_take(made, data):
    devices = data.draw(st.sets(st.sampled_from([d for d, _ in made.hosts]))) if made.hosts else {}
    expected = [
        chunk
        for chunk in program(made)
        if any(leg.sender in devices or leg.receiver in devices for leg in chunk.legs)
    ]
    assert list(program(made, devices)) == expected
