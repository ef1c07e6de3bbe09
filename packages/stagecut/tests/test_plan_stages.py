import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from stagecut import (
    InfeasibleStagesError,
    InternalError,
    InvalidInputError,
    StageCost,
    assign_devices,
    plan_stages,
    slice_stages,
)
from stagecut.testing import (
    all_slicings,
    pipeline_problems,
    pipeline_step_s,
    slicing_problems,
)

problems = slicing_problems(max_layers=4, shapes=((1, 1), (1, 4), (2, 2), (3, 1)))


def planned(problem, **options):
    return plan_stages(
        problem.n_layers,
        problem.cluster_shape,
        problem.n_microbatches,
        problem.cost,
        problem.memory_bytes,
        boundary_s=problem.boundary_s,
        **options,
    )


def even(first, last, submesh):
    return StageCost((last - first + 1) / submesh[0] / submesh[1], last - first + 1, 0)


@given(problems)
def test_a_plan_is_the_best_slicing_with_its_devices(problem):
    try:
        plan = planned(problem)
    except InfeasibleStagesError:
        return
    found = slice_stages(
        problem.n_layers,
        problem.cluster_shape,
        problem.n_microbatches,
        problem.cost,
        problem.memory_bytes,
        boundary_s=problem.boundary_s,
    )
    assert plan.time_s == found.time_s
    assert plan.spans == tuple((s.first, s.last, s.submesh) for s in found.stages)
    grids = assign_devices([stage.submesh for stage in plan.stages], problem.cluster_shape)
    assert tuple(stage.devices for stage in plan.stages) == grids
    if problem.memory_bytes is not None:
        assert all(stage.peak_bytes <= problem.memory_bytes for stage in plan.stages)


@given(problems)
def test_no_rival_is_faster_and_each_is_a_slicing_or_says_why_not(problem):
    try:
        plan = planned(problem, flops=range(problem.n_layers), n_operators=[2] * problem.n_layers)
    except InfeasibleStagesError:
        return
    possible = set(all_slicings(problem.n_layers, problem.cluster_shape))
    for rival in plan.rivals:
        assert rival.spans in possible if rival.spans else rival.reason
        assert (rival.time_s is None) == bool(rival.reason)
        if rival.time_s is not None:
            assert rival.time_s >= plan.time_s


@given(problems)
def test_neighbours_differ_in_the_stages_that_they_name_only(problem):
    try:
        plan = planned(problem)
    except InfeasibleStagesError:
        return
    for rival in plan.rivals:
        if rival.kind == "neighbour":
            left, right = rival.changes
            assert right == left + 1
            n = len(plan.stages)
            assert rival.spans[:left] == plan.spans[:left]
            assert rival.spans[len(rival.spans) - (n - right - 1) :] == plan.spans[right + 1 :]
            assert rival.spans != plan.spans


@given(problems)
def test_a_price_is_asked_once(problem):
    asked = []

    def cost(first, last, submesh):
        asked.append((first, last, submesh))
        return problem.cost(first, last, submesh)

    try:
        plan_stages(
            problem.n_layers, problem.cluster_shape, problem.n_microbatches, cost,
            flops=[1.0] * problem.n_layers,
        )  # fmt: skip
    except InfeasibleStagesError:
        return
    assert len(asked) == len(set(asked))


@settings(max_examples=max(100, settings().max_examples // 5))
@given(pipeline_problems())
def test_a_plan_with_values_that_skip_stages_keeps_to_the_memory_and_no_rival_is_faster(problem):
    try:
        plan = plan_stages(
            problem.n_layers,
            problem.cluster_shape,
            problem.n_microbatches,
            problem.cost,
            problem.memory_bytes,
            schedule=problem.schedule,
            edges=problem.edges,
            transfer_s=problem.transfer_s,
        )
    except InfeasibleStagesError:
        return
    assert plan.time_s == pipeline_step_s(problem, plan.spans, [each.cost for each in plan.stages])
    if problem.memory_bytes is not None:
        assert all(stage.peak_bytes <= problem.memory_bytes for stage in plan.stages)
    for rival in plan.rivals:
        assert rival.time_s is None or rival.time_s >= plan.time_s


def rival(plan, name):
    return next(rival for rival in plan.rivals if rival.name == name)


def test_a_manual_cut_is_priced():
    spans = (0, 2, (1, 2)), (3, 3, (1, 2))
    plan = plan_stages(4, (1, 4), 4, even, manual={"mine": spans})
    assert rival(plan, "mine").time_s == 1.5 + 0.5 + 3 * 1.5
    assert rival(plan, "mine").spans == spans


def test_candidates_that_cannot_run_say_why():
    def cost(first, last, submesh):
        return None if first == 3 and submesh == (1, 1) else even(first, last, submesh)

    manual = {
        "fat": [(0, 2, (1, 2)), (3, 3, (1, 2))],
        "large": [(0, 1, (1, 4)), (2, 3, (1, 4))],
        "lone": [(0, 0, (1, 1)), (1, 1, (1, 1)), (2, 2, (1, 1)), (3, 3, (1, 1))],
    }
    plan = plan_stages(4, (1, 4), 4, cost, 2, manual=manual)
    reasons = [rival(plan, name).reason for name in manual]
    assert reasons == [
        "memory of stage 0: 3 of 2 B",
        "cannot cover 4 devices with 1x4 + 1x4",
        "stage 3 cannot run on its submesh",
    ]
    assert rival(plan, "equal layers, 1 stage").reason == "memory of stage 0: 4 of 2 B"


def test_equal_flops_and_operators_are_compared_where_they_are_known():
    plan = plan_stages(4, (1, 2), 4, even, flops=(3, 1, 1, 1), n_operators=(1, 1, 1, 3))
    assert rival(plan, "equal FLOPs, 2 stages").spans == ((0, 0, (1, 1)), (1, 3, (1, 1)))
    assert rival(plan, "equal operators, 2 stages").spans == ((0, 2, (1, 1)), (3, 3, (1, 1)))
    kinds = {r.kind for r in plan_stages(4, (1, 2), 4, even, alternatives=True).rivals}
    assert kinds == {"stages", "equal layers"}


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "eager-1f1b"])
def test_the_schedule_says_what_stages_hold(schedule):
    def cost(first, last, submesh):
        return StageCost(1.0, 0, 1)

    plan = plan_stages(3, (1, 3), 4, cost, schedule=schedule, memory_bytes=9)
    n = len(plan.stages)
    held = {"gpipe": [4] * n, "1f1b": range(n, 0, -1), "eager-1f1b": range(2 * n - 1, 0, -2)}
    assert [stage.in_flight for stage in plan.stages] == [min(4, k) for k in held[schedule]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"flops": [1.0]}, "flops has a number for each of the 4 layers"),
        ({"n_operators": [1, 1, 1, -1]}, "finite and not negative"),
        ({"flops": [1, 1, 1, math.nan]}, "finite and not negative"),
        ({"manual": {"mine": [(0, 1, (1, 4))]}}, "has all 4 layers; got .* for 'mine'"),
        ({"schedule": "magic"}, "a schedule is one of .* got schedule='magic'"),
    ],
)
def test_rejects_what_is_of_another_model(options, message):
    with pytest.raises(InvalidInputError, match=message):
        plan_stages(4, (1, 4), 4, even, **options)


def test_a_search_that_does_not_say_its_microbatches_is_a_fault_of_ours(monkeypatch):
    def silent(*arguments, **options):
        return replace(slice_stages(*arguments, **options), n_microbatches=None)

    monkeypatch.setattr("stagecut.plan.plan_stages.slice_stages", silent)
    with pytest.raises(InternalError, match="says which number of microbatches it chose; got"):
        plan_stages(1, (1, 1), 1, even)
