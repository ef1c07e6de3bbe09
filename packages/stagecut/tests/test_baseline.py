import pytest
from hypothesis import given
from hypothesis import strategies as st
from stagecut import (
    InfeasibleStagesError,
    InvalidInputError,
    StageCost,
    equal_layers,
    plan_stages,
    slice_stages,
)
from stagecut.testing import all_slicings, slicing_problems


def unit(first, last, submesh):
    return StageCost(float(last - first + 1), last, 1)


@given(slicing_problems(), st.integers(1, 8))
def test_is_never_better_than_the_search(problem, n_stages):
    try:
        baseline = equal_layers(
            problem.n_layers,
            problem.cluster_shape,
            problem.n_microbatches,
            problem.cost,
            problem.memory_bytes,
            n_stages=n_stages,
            boundary_s=problem.boundary_s,
        )
    except (InvalidInputError, InfeasibleStagesError):
        return
    found = slice_stages(
        problem.n_layers,
        problem.cluster_shape,
        problem.n_microbatches,
        problem.cost,
        problem.memory_bytes,
        boundary_s=problem.boundary_s,
    )
    assert found.time_s <= baseline.time_s
    spans = tuple((each.first, each.last, each.submesh) for each in baseline.stages)
    assert spans in set(all_slicings(problem.n_layers, problem.cluster_shape))


def test_gives_layers_left_over_to_the_first_stages():
    plan = equal_layers(6, (2, 4), 3, unit, n_stages=4)
    assert [(s.first, s.last, s.submesh) for s in plan.stages] == [
        (0, 1, (1, 2)),
        (2, 3, (1, 2)),
        (4, 4, (1, 2)),
        (5, 5, (1, 2)),
    ]
    assert plan.time_s == plan.lower_bound_s == 6 + 2 * 2
    assert (plan.n_priced, plan.alternatives) == (4, ())


@given(st.integers(1, 40), st.sampled_from((1, 2, 4, 8)))
def test_layers_differ_by_one_at_most_and_a_plan_compares_with_the_same(n_layers, n_stages):
    if n_layers < n_stages:
        return
    plan = equal_layers(n_layers, (2, 4), 3, unit, n_stages=n_stages)
    counts = [stage.last - stage.first + 1 for stage in plan.stages]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] - counts[-1] <= 1
    spans = [(stage.first, stage.last, stage.submesh) for stage in plan.stages]
    rivals = plan_stages(n_layers, (2, 4), 3, unit, n_stages=1).rivals
    assert spans in [list(rival.spans) for rival in rivals if rival.kind == "equal layers"]


@pytest.mark.parametrize("n_stages", [0, 3, 5, 16])
def test_rejects_stages_that_cannot_be_equal(n_stages):
    with pytest.raises(InvalidInputError, match=f"equal stages have .* got n_stages={n_stages},"):
        equal_layers(4, (2, 4), 1, unit, n_stages=n_stages)


def test_says_which_stage_has_no_cost():
    with pytest.raises(InfeasibleStagesError, match="got None for stage 0 of 2, layers 0-1"):
        equal_layers(4, (2, 4), 1, lambda *_: None, n_stages=2)


def test_says_which_stage_does_not_fit():
    with pytest.raises(InfeasibleStagesError, match="got 4 bytes for stage 1 of 2") as caught:
        equal_layers(4, (2, 4), 8, unit, memory_bytes=3, n_stages=2)
    assert (caught.value.peak_bytes, caught.value.stage, caught.value.layers) == (4, 1, (2, 3))
