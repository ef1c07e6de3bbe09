import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from stagecut import (
    InfeasibleStagesError,
    InvalidBoundError,
    InvalidInputError,
    StageCost,
    pipeline_time_s,
    price_stages,
    slice_stages,
)
from stagecut.testing import all_slicings, brute_force_peak, brute_force_slicing, slicing_problems


def solve(problem, **options):
    return slice_stages(
        problem.n_layers,
        problem.cluster_shape,
        problem.n_microbatches,
        options.pop("cost", problem.cost),
        problem.memory_bytes,
        boundary_s=problem.boundary_s,
        **({"alternatives": True} | options),
    )


def solve_or_error(problem, **options):
    try:
        return solve(problem, **options)
    except InfeasibleStagesError as error:
        return error


def loose_bound(problem, looseness):
    """A bound below each cost; a fraction of it for stages that can run."""

    def bound_s(first, last, submesh):
        cost = problem.cost(first, last, submesh)
        return 0.0 if cost is None else cost.time_s * looseness

    return bound_s


def uniform(first, last, submesh):
    return StageCost((last - first + 1) / (submesh[0] * submesh[1]), 1, 1)


@settings(max_examples=max(100, settings().max_examples // 5))
@given(slicing_problems())
def test_equals_brute_force_for_each_number_of_stages(problem):
    best = brute_force_slicing(problem)
    if not best:
        with pytest.raises(InfeasibleStagesError):
            solve(problem)
        return
    slicing = solve(problem)
    assert {len(each.spans): each.time_s for each in slicing.alternatives} == best
    assert all(each.is_priced for each in slicing.alternatives)
    assert slicing.time_s == slicing.lower_bound_s == min(best.values())


@settings(max_examples=settings().max_examples // 4)
@given(slicing_problems(max_layers=7, shapes=((4, 4), (3, 4), (4, 3), (4, 2))))
def test_equals_brute_force_on_up_to_four_hosts_of_four_devices(problem):
    best = brute_force_slicing(problem)
    if not best:
        with pytest.raises(InfeasibleStagesError):
            solve(problem)
        return
    slicing = solve(problem)
    assert {len(each.spans): each.time_s for each in slicing.alternatives} == best
    assert slicing.time_s == slicing.lower_bound_s == min(best.values())


@given(slicing_problems(), st.sampled_from((0.0, 0.5, 1.0)))
def test_a_bound_changes_neither_the_time_nor_what_is_feasible(problem, looseness):
    best = brute_force_slicing(problem)
    bound_s = loose_bound(problem, looseness)
    if not best:
        with pytest.raises(InfeasibleStagesError):
            solve(problem, bound_s=bound_s)
        return
    slicing = solve(problem, bound_s=bound_s)
    assert slicing.time_s == slicing.lower_bound_s == min(best.values())
    for each in slicing.alternatives:
        if each.is_priced:
            assert each.time_s == best[len(each.spans)]
        else:
            assert slicing.time_s <= each.time_s <= best.get(len(each.spans), math.inf)
    assert set(best) <= {len(each.spans) for each in slicing.alternatives}


@settings(max_examples=max(100, settings().max_examples // 5))
@given(slicing_problems(), st.sampled_from((0.0, 0.1, 1.0)), st.sampled_from((0.0, 0.5, 1.0)))
def test_stops_within_the_gap_and_bounds_the_optimum_from_below(problem, gap, looseness):
    best = brute_force_slicing(problem)
    assume(best)
    slicing = solve(problem, gap=gap, bound_s=loose_bound(problem, looseness))
    optimum = min(best.values())
    assert slicing.lower_bound_s <= optimum <= slicing.time_s
    assert slicing.time_s <= (1 + gap) * slicing.lower_bound_s


@settings(max_examples=max(100, settings().max_examples // 5))
@given(slicing_problems(), st.sampled_from((None, 0.5)))
def test_stages_are_a_slicing_of_that_time_with_the_costs_asked_for(problem, looseness):
    assume(brute_force_slicing(problem))
    slicing = solve(problem, bound_s=looseness and loose_bound(problem, looseness))
    spans = tuple((each.first, each.last, each.submesh) for each in slicing.stages)
    assert spans in set(all_slicings(problem.n_layers, problem.cluster_shape))
    assert [each.cost for each in slicing.stages] == [problem.costs[span] for span in spans]
    times = [each.cost.time_s + problem.boundaries_s[each.first] for each in slicing.stages]
    assert slicing.time_s == pipeline_time_s(times, problem.n_microbatches)


@given(slicing_problems(), st.booleans())
def test_asks_once_and_only_for_stages_of_some_slicing(problem, with_bound):
    asked = []
    reports = []

    def cost(*span):
        asked.append(span)
        return problem.cost(*span)

    assume(brute_force_slicing(problem))
    slicing = solve(
        problem,
        cost=cost,
        bound_s=loose_bound(problem, 0.5) if with_bound else None,
        progress=lambda *report: reports.append(report),
    )
    needed = {
        span for spans in all_slicings(problem.n_layers, problem.cluster_shape) for span in spans
    }
    assert len(asked) == len(set(asked)) == slicing.n_priced
    assert set(asked) <= needed
    assert with_bound or set(asked) == needed
    assert reports == [(n + 1, len(needed)) for n in range(len(asked))]


def test_keeps_the_best_priced_slicing_while_a_better_one_is_still_possible():
    # Two stages look better than one, by less than the gap, and are not.
    times = {(1, 2): (5.0, 10.0), (1, 1): (4.75, 10.0)}  # bound and cost of each stage

    def cost(first, last, submesh):
        return StageCost(times[submesh][1], 0, 0)

    def bound_s(first, last, submesh):
        return times[submesh][0]

    slicing = slice_stages(2, (1, 2), 1, cost, bound_s=bound_s, gap=0.1)
    assert len(slicing.stages) == 1
    assert (slicing.time_s, slicing.lower_bound_s) == (10.0, 9.5)


def test_a_tight_bound_saves_most_prices():
    def bound_s(first, last, submesh):
        return uniform(first, last, submesh).time_s

    slicing = slice_stages(8, (2, 4), 16, uniform, bound_s=bound_s)
    assert slicing.n_priced == len(slicing.stages)
    assert slicing.n_priced < slice_stages(8, (2, 4), 16, uniform).n_priced / 10


@settings(max_examples=max(100, settings().max_examples // 5))
@given(slicing_problems(), st.integers(1, 6))
def test_more_microbatches_never_take_less_time(problem, more):
    problem = replace(problem, memory_bytes=None)
    assume(brute_force_slicing(problem))
    longer = replace(problem, n_microbatches=problem.n_microbatches + more)
    assert solve(longer).time_s >= solve(problem).time_s


@settings(max_examples=max(100, settings().max_examples // 5))
@given(slicing_problems())
def test_more_memory_never_takes_more_time(problem):
    assume(brute_force_slicing(problem))
    assert solve(replace(problem, memory_bytes=None)).time_s <= solve(problem).time_s


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 6), st.integers(1, 3))
def test_more_hosts_never_take_more_time_if_work_divides(work, n_microbatches, n_hosts):
    def cost(first, last, submesh):
        return StageCost(sum(work[first : last + 1]) / (submesh[0] * submesh[1]), 0, 0)

    fewer, more = (
        slice_stages(len(work), (hosts, 4), n_microbatches, cost).time_s
        for hosts in (n_hosts, n_hosts + 1)
    )
    assert more <= fewer * (1 + 1e-12)


@settings(max_examples=max(100, settings().max_examples // 5))
@given(slicing_problems(), st.integers(2, 5))
def test_the_unit_of_time_does_not_matter(problem, unit):
    assume(brute_force_slicing(problem))
    scaled = replace(
        problem,
        costs={
            span: cost and replace(cost, time_s=cost.time_s * unit)
            for span, cost in problem.costs.items()
        },
        boundaries_s=tuple(each * unit for each in problem.boundaries_s),
    )
    assert solve(scaled).time_s == solve(problem).time_s * unit


def test_other_schedules_hold_other_numbers_of_microbatches():
    def gpipe(_, n_microbatches):
        return n_microbatches

    def cost(first, last, submesh):
        return StageCost(1.0, 0, 1) if first == last else None

    assert len(slice_stages(2, (1, 2), 8, cost, memory_bytes=2).stages) == 2
    with pytest.raises(InfeasibleStagesError, match=r"smallest peak .* \(8 bytes\)"):
        slice_stages(2, (1, 2), 8, cost, memory_bytes=2, in_flight=gpipe)


def test_a_boundary_cost_moves_the_cut_and_is_not_asked_for_layer_0():
    def boundary_s(layer):
        return {1: 0.0, 2: 8.0, 3: 8.0}[layer]

    def cost(first, last, submesh):
        return StageCost(float(last - first + 1), 0, 0) if submesh == (1, 1) else None

    assert [s.first for s in slice_stages(4, (1, 2), 4, cost).stages] == [0, 2]
    moved = slice_stages(4, (1, 2), 4, cost, boundary_s=boundary_s)
    assert [s.first for s in moved.stages] == [0, 1]


@given(slicing_problems())
def test_the_error_names_the_smallest_memory_that_is_enough(problem):
    peak = brute_force_peak(problem)
    assume(peak is not None)
    assume(peak)
    with pytest.raises(InfeasibleStagesError, match=r"no slicing fits in .* a device") as caught:
        solve(replace(problem, memory_bytes=peak - 1))
    assert caught.value.peak_bytes == peak
    assert solve(replace(problem, memory_bytes=peak)).stages


def test_the_error_names_the_stage_that_needs_most():
    def cost(first, last, submesh):
        fixed = 10 if first <= 2 <= last else 1
        return StageCost(1.0, fixed, 0) if first == last else None

    message = r"smallest peak is 10 B \(10 bytes\) \(stage 2 of 4, layers 2-2\)"
    with pytest.raises(InfeasibleStagesError, match=message) as caught:
        slice_stages(4, (1, 4), 1, cost, memory_bytes=5)
    assert (caught.value.stage, caught.value.layers) == (2, (2, 2))


@settings(max_examples=max(100, settings().max_examples // 5))
@given(slicing_problems(), st.lists(st.integers(2, 24), min_size=2, max_size=4))
def test_memory_of_unlike_devices_is_as_good_as_bytes_that_are_always_taken(problem, limits):
    def limit(submesh):
        return limits[sum(submesh) % len(limits)]

    def padded(first, last, submesh):
        cost = problem.cost(first, last, submesh)
        missing = max(limits) - limit(submesh)
        return None if cost is None else replace(cost, fixed_bytes=cost.fixed_bytes + missing)

    expected = solve_or_error(replace(problem, memory_bytes=max(limits)), cost=padded)
    found = solve_or_error(replace(problem, memory_bytes=limit))
    if isinstance(found, InfeasibleStagesError):
        assert isinstance(expected, InfeasibleStagesError)
        assert (found.stage, found.layers) == (expected.stage, expected.layers)
        return
    assert [each.spans for each in found.alternatives] == [e.spans for e in expected.alternatives]
    assert found.time_s == expected.time_s
    spans = [(stage.first, stage.last, stage.submesh) for stage in found.stages]
    again = price_stages(
        spans, problem.n_microbatches, problem.cost, limit, boundary_s=problem.boundary_s
    )
    assert again.time_s == found.time_s


@settings(max_examples=max(100, settings().max_examples // 5))
@given(slicing_problems(), st.sampled_from((0.0, 0.5)))
def test_with_a_bound_the_error_does_not_claim_more_memory_than_needed(problem, looseness):
    peak = brute_force_peak(problem)
    assume(peak is not None)
    assume(peak)
    bound_s = loose_bound(problem, looseness)
    with pytest.raises(InfeasibleStagesError, match=r"smallest peak is (at least )?") as caught:
        solve(replace(problem, memory_bytes=peak - 1), bound_s=bound_s)
    assert peak - 1 < caught.value.peak_bytes <= peak


@pytest.mark.parametrize("memory_bytes", [None, 5])
def test_says_that_no_slicing_has_a_cost(memory_bytes):
    with pytest.raises(InfeasibleStagesError, match="a stage whose cost is None") as caught:
        slice_stages(2, (1, 2), 1, lambda *_: None, memory_bytes)
    assert caught.value.peak_bytes is None


@pytest.mark.parametrize("bound", [-1.0, math.nan])
def test_rejects_a_bound_that_is_no_time(bound):
    with pytest.raises(InvalidBoundError, match=r"a time that is not negative; got bound_s\(0, 0"):
        slice_stages(1, (1, 1), 1, uniform, bound_s=lambda *_: bound)


def test_rejects_a_cost_below_its_bound():
    with pytest.raises(InvalidBoundError, match=r"bound_s=2.0 and time_s=1.0 for layers 0-0"):
        slice_stages(1, (1, 1), 1, uniform, bound_s=lambda *_: 2.0)


@pytest.mark.parametrize("boundary", [-1.0, math.nan, math.inf])
def test_rejects_a_boundary_that_is_no_time(boundary):
    with pytest.raises(InvalidInputError, match=r"got boundary_s\(1\)="):
        slice_stages(2, (1, 1), 1, uniform, boundary_s=lambda _: boundary)


@pytest.mark.parametrize(
    "sizes",
    [(0, (1, 1), 1, 0.0), (1, (0, 1), 1, 0.0), (1, (1, 1), 0, 0.0), (1, (1, 1), 1, -0.1)],
    ids=str,
)
def test_rejects_sizes_below_one_and_negative_gaps(sizes):
    *arguments, gap = sizes
    with pytest.raises(InvalidInputError, match="are at least 1, gap at least 0, and alternatives"):
        slice_stages(*arguments, uniform, gap=gap)
