import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stagecut import (
    SCHEDULES,
    Boundary,
    InfeasibleStagesError,
    InvalidInputError,
    StageCost,
    pipeline_time_s,
    price_stages,
    slice_stages,
)
from stagecut.slice.exchange import exchange
from stagecut.testing import all_slicings, pipeline_problems, pipeline_step_s, slicing_problems

eighths = st.integers(0, 32).map(lambda n: n / 8)
options = st.lists(
    st.builds(StageCost, eighths, st.integers(0, 8), st.integers(0, 4), eighths, st.integers(0, 4)),
    min_size=1,
    max_size=4,
)


@given(slicing_problems())
def test_the_best_slicing_takes_what_the_search_says(problem):
    arguments = problem.n_microbatches, problem.cost, problem.memory_bytes
    try:
        found = slice_stages(
            problem.n_layers, problem.cluster_shape, *arguments, boundary_s=problem.boundary_s
        )
    except InfeasibleStagesError:
        return
    spans = [(each.first, each.last, each.submesh) for each in found.stages]
    priced = price_stages(spans, *arguments, boundary_s=problem.boundary_s)
    assert priced.time_s == found.time_s
    assert priced.stages == found.stages


@given(st.lists(options, min_size=1, max_size=4), st.integers(1, 6), st.none() | st.integers(4, 24))
def test_options_are_the_best_of_all_combinations(stages, n_microbatches, memory_bytes):
    n = len(stages)

    def peak(stage, option):
        held = min(n - stage, n_microbatches)
        return option.fixed_bytes + option.temporary_bytes + held * option.activation_bytes

    times = [
        pipeline_time_s([o.time_s for o in chosen], n_microbatches, [o.once_s for o in chosen])
        for chosen in itertools.product(*stages)
        if memory_bytes is None or all(peak(k, o) <= memory_bytes for k, o in enumerate(chosen))
    ]
    spans = [(stage, stage, (1, 1)) for stage in range(n)]

    def price():
        return price_stages(
            spans, n_microbatches, lambda first, last, submesh: stages[first], memory_bytes
        )

    if times:
        found = price()
        assert found.time_s == found.lower_bound_s == min(times)
        assert all(each.cost in stages[k] for k, each in enumerate(found.stages))
    else:
        with pytest.raises(InfeasibleStagesError) as caught:
            price()
        stage = caught.value.stage
        leanest = min(peak(stage, option) for option in stages[stage])
        assert caught.value.peak_bytes == leanest > memory_bytes


@pytest.mark.parametrize(
    "spans",
    [
        [],
        [(1, 2, (1, 1))],
        [(0, 1, (1, 1)), (1, 2, (1, 1))],
        [(0, 1, (1, 1)), (3, 4, (1, 1))],
        [(0, -1, (1, 1))],
    ],
)
def test_rejects_stages_that_are_no_runs_of_layers_in_order(spans):
    with pytest.raises(InvalidInputError, match="runs of layers from layer 0 on"):
        price_stages(spans, 1, lambda *_: StageCost(1.0, 0, 0))


def test_rejects_no_microbatch():
    with pytest.raises(InvalidInputError, match="n_microbatches=0"):
        price_stages([(0, 0, (1, 1))], 0, lambda *_: StageCost(1.0, 0, 0))


def test_says_which_stage_cannot_run():
    spans = [(0, 0, (1, 1)), (1, 3, (1, 1))]
    with pytest.raises(InfeasibleStagesError, match="None for stage 1 of 2, layers 1-3") as caught:
        price_stages(spans, 1, lambda first, *_: None if first else StageCost(1.0, 0, 0))
    assert (caught.value.stage, caught.value.layers, caught.value.peak_bytes) == (1, (1, 3), None)


@settings(max_examples=max(100, settings().max_examples // 5))
@given(pipeline_problems(), st.data())
def test_given_stages_take_what_their_best_options_take_with_values_that_skip_stages(problem, data):
    spans = data.draw(
        st.sampled_from(sorted(all_slicings(problem.n_layers, problem.cluster_shape)))
    )
    combinations = itertools.product(*(problem.options[span] for span in spans))
    times = [pipeline_step_s(problem, spans, costs) for costs in combinations]

    def price():
        return price_stages(
            spans,
            problem.n_microbatches,
            problem.cost,
            problem.memory_bytes,
            edges=problem.edges,
            transfer_s=problem.transfer_s,
            in_flight=SCHEDULES[problem.schedule],
        )

    if any(time_s is not None for time_s in times):
        assert price().time_s == min(time_s for time_s in times if time_s is not None)
    else:
        with pytest.raises(InfeasibleStagesError):
            price()


@pytest.mark.parametrize(
    "edge", [Boundary(0, 1, (4,)), Boundary(2, 1, (1,)), Boundary(-1, 1, (1,))], ids=str
)
def test_rejects_values_that_are_not_between_layers(edge):
    with pytest.raises(InvalidInputError, match=r"read it after one made it; got .* and 4 layers"):
        exchange([(0, 3, (1, 1))], edges=[edge], transfer_s=lambda *_: 0.0)


def test_rejects_values_without_a_time():
    with pytest.raises(InvalidInputError, match="transfer_s=None"):
        exchange([(0, 3, (1, 1))], edges=[Boundary(0, 1, (1,))])
