"""costmodel counts as many microbatches in flight as pipesched's simulated schedules hold."""

import pytest
from costmodel import LINEAR_SCHEDULES, in_flight, stage_memory_bytes
from hypothesis import given
from hypothesis import strategies as st
from pipesched import Costs, make, simulate
from pipesched.testing import LINEAR

WHOLE = [name for name in LINEAR_SCHEDULES if name in LINEAR]
"""Schedules with whole backwards."""

seconds = st.floats(0.1, 10)


@st.composite
def pipelines(draw):
    """Sizes and times of the stages: (n_stages, n_microbatches), forward_s, backward_s."""
    n_stages = draw(st.integers(1, 8))
    per_stage = st.lists(seconds, min_size=n_stages, max_size=n_stages)
    return (n_stages, draw(st.integers(1, 20))), draw(per_stage), draw(per_stage)


@pytest.mark.parametrize("schedule", LINEAR_SCHEDULES)
@given(pipeline=pipelines(), transfer_s=seconds)
def test_in_flight_is_the_peak_of_the_simulated_schedule(schedule, pipeline, transfer_s):
    sizes, forward_s, backward_s = pipeline
    timeline = simulate(make(schedule, *sizes), Costs(forward_s, backward_s, transfer_s=transfer_s))
    counted = [in_flight(schedule, stage, *sizes) for stage in range(sizes[0])]
    assert tuple(held.activations for held in counted) == timeline.peak_in_flight
    # By default, a microbatch takes one byte until the gradient of the weights has run.
    assert tuple(h.activations + h.weight_gradients for h in counted) == timeline.peak_bytes
    assert (schedule in WHOLE) == (in_flight(schedule, 1, 2, 2).weight_gradients == 0)


@pytest.mark.parametrize("schedule", WHOLE)
@given(pipeline=pipelines(), data=st.data())
def test_stage_memory_is_the_peak_of_the_simulated_schedule(schedule, pipeline, data):
    sizes, forward_s, backward_s = pipeline
    each = st.integers(0, 2**30)
    activations = data.draw(st.lists(each, min_size=sizes[0], max_size=sizes[0]))
    costs = Costs(forward_s, backward_s, activation_bytes=activations, parameter_bytes=28)
    peak_bytes = simulate(make(schedule, *sizes), costs).peak_bytes
    for stage, n_bytes in enumerate(peak_bytes):
        held = in_flight(schedule, stage, *sizes)
        assert stage_memory_bytes(7, 7, 14, activations[stage], held) == n_bytes
