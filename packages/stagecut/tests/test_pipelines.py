"""All that `slice_stages` can be told beyond layers, a cluster and one cost for each stage."""

import itertools
import resource

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from stagecut import (
    Boundary,
    HostKind,
    InfeasibleStagesError,
    InvalidInputError,
    Places,
    PriceCache,
    Rejection,
    StageCost,
    UnfinishedSearchError,
    slice_stages,
)
from stagecut.testing import (
    brute_force_pipelines,
    clusters,
    pipeline_problems,
    pipeline_step_s,
    slicing_problems,
)


def solve(problem, **options):
    return slice_stages(
        problem.n_layers,
        problem.cluster_shape,
        problem.n_microbatches,
        problem.cost,
        problem.memory_bytes,
        schedule=problem.schedule,
        edges=problem.edges,
        transfer_s=problem.transfer_s,
        **({"alternatives": True} | options),
    )


def spans_of(slicing):
    return tuple((stage.first, stage.last, stage.submesh) for stage in slicing.stages)


def never(first, last, submesh):
    raise AssertionError("nobody should ask")


def uniform(first, last, submesh):
    return StageCost((last - first + 1) / (submesh[0] * submesh[1]), last - first + 1, 1)


@settings(max_examples=max(100, settings().max_examples // 5))
@given(pipeline_problems())
def test_equals_brute_force_with_options_schedules_and_values_that_skip_stages(problem):
    best = brute_force_pipelines(problem)
    if not best:
        with pytest.raises(InfeasibleStagesError):
            solve(problem)
        return
    slicing = solve(problem)
    assert {len(each.spans): each.time_s for each in slicing.alternatives} == best
    assert slicing.time_s == slicing.lower_bound_s == min(best.values())
    chosen = [stage.cost for stage in slicing.stages]
    assert pipeline_step_s(problem, spans_of(slicing), chosen) == slicing.time_s


@settings(max_examples=max(100, settings().max_examples // 5))
@given(pipeline_problems(), st.lists(st.integers(1, 4), min_size=1, max_size=2, unique=True))
def test_takes_only_the_numbers_of_stages_it_is_told(problem, counts):
    best = brute_force_pipelines(problem)
    allowed = [time_s for count, time_s in best.items() if count in counts]
    if not allowed:
        with pytest.raises(InfeasibleStagesError):
            solve(problem, n_stages=counts)
        return
    slicing = solve(problem, n_stages=counts)
    assert len(slicing.stages) in counts
    assert slicing.time_s == min(allowed)


@settings(max_examples=max(100, settings().max_examples // 5))
@given(pipeline_problems())
def test_without_alternatives_it_finds_a_slicing_as_good(problem):
    best = brute_force_pipelines(problem)
    assume(best)
    slicing = solve(problem, alternatives=False)
    assert slicing.time_s == min(best.values())
    assert slicing.alternatives == ()
    some = solve(problem, alternatives=(1, 3))
    assert some.time_s == min(best.values())
    found = {len(each.spans): each.time_s for each in some.alternatives}
    assert found == {count: time_s for count, time_s in best.items() if count in (1, 3)}


@settings(max_examples=max(100, settings().max_examples // 5))
@given(pipeline_problems(), st.sampled_from((0.0, 0.5, 1.0)))
def test_bounds_change_no_time_where_options_differ_and_values_skip_stages(problem, looseness):
    best = brute_force_pipelines(problem)
    assume(best)

    def bound_s(*span):
        options = problem.options[span]
        return min((each.time_s for each in options), default=8.0) * looseness

    slicing = solve(problem, bound_s=bound_s, alternatives=False)
    assert slicing.time_s == slicing.lower_bound_s == min(best.values())


def test_a_value_that_skips_a_stage_is_kept_where_it_was_made():
    # Layer 0 makes 6 bytes that layer 2 reads; a stage needs 10 anyway.
    def cost(first, last, submesh):
        return StageCost(1.0, 10, 0) if first == last else None

    def solve(memory_bytes):
        return slice_stages(
            3,
            (1, 3),
            1,
            cost,
            memory_bytes,
            edges=[Boundary(0, 6, (2,))],
            transfer_s=lambda n_bytes, sender, receiver: float(n_bytes),
        )

    assert solve(16).time_s == 3 + 6
    message = r"values that stages hold for later ones, without which the smallest peak is at least"
    with pytest.raises(InfeasibleStagesError, match=message):
        solve(15)


def test_a_search_that_ends_early_says_how_good_its_slicing_is_at_least(monkeypatch):
    def solve():
        return slice_stages(
            3,
            (1, 4),
            1,
            lambda first, last, submesh: StageCost(9.0 if first < submesh[1] - 1 else 1.0, 0, 0),
            edges=[Boundary(0, 1, (2,))],
            # What skips a stage would come quickly from where it is too expensive to make it.
            transfer_s=lambda n_bytes, sender, receiver: 0.25 if sender == (1, 2) else 3.0,
            n_stages=3,
        )

    assert solve().time_s == solve().lower_bound_s == 6.0
    monkeypatch.setattr("stagecut.slice.skip_edges.MOST_STEPS", 3)
    slicing = solve()
    assert (slicing.time_s, slicing.lower_bound_s) == (6.0, 3.25)


def test_a_search_that_ends_before_any_slicing_fits_does_not_say_that_there_is_none(monkeypatch):
    monkeypatch.setattr("stagecut.slice.skip_edges.MOST_STEPS", 1)
    edges = [Boundary(0, 6, (2,))]
    with pytest.raises(UnfinishedSearchError, match="in 1 steps, though there may be one"):
        slice_stages(3, (1, 3), 1, uniform, 7, edges=edges, transfer_s=lambda *_: 0.0, n_stages=3)


@settings(max_examples=max(100, settings().max_examples // 5))
@given(pipeline_problems(), st.sampled_from((0.1, 1.0)))
def test_a_gap_bounds_the_shortest_step_from_both_sides(problem, gap):
    best = brute_force_pipelines(problem)
    assume(best)
    slicing = solve(problem, gap=gap, alternatives=False)
    assert slicing.lower_bound_s <= min(best.values()) <= slicing.time_s
    assert slicing.time_s <= (1 + gap) * slicing.lower_bound_s * (1 + 1e-12)


@settings(max_examples=max(100, settings().max_examples // 5))
@given(pipeline_problems())
def test_every_number_of_stages_has_a_best_slicing_or_a_reason(problem):
    assume(brute_force_pipelines(problem))
    slicing = solve(problem)
    n_devices = problem.cluster_shape[0] * problem.cluster_shape[1]
    possible = [len(each.spans) for each in slicing.alternatives]
    impossible = [int(each.what.split()[0]) for each in slicing.rejected]
    everything = range(1, min(problem.n_layers, n_devices) + 1)
    assert sorted(possible + impossible) == list(everything)


@given(slicing_problems(), st.lists(st.integers(0, 1), min_size=5, max_size=5))
def test_equal_structure_is_asked_once_and_changes_nothing(problem, kinds):
    kinds = kinds[: problem.n_layers]
    asked = []

    def cost(first, last, submesh):
        run = kinds[first : last + 1]
        asked.append((tuple(run), submesh))
        return StageCost(1 + sum(run) / submesh[1] + len(run), len(run), sum(run))

    arguments = problem.n_layers, problem.cluster_shape, problem.n_microbatches, cost
    apart = slice_stages(*arguments)
    distinct = set(asked)
    asked.clear()
    together = slice_stages(*arguments, structure=kinds)
    assert (together.time_s, spans_of(together)) == (apart.time_s, spans_of(apart))
    assert together.n_priced == len(asked) == len(set(asked))
    assert set(asked) == distinct


def test_a_homogeneous_model_is_asked_for_linearly_many_costs():
    n_asked = [
        slice_stages(n, (2, 4), 8, uniform, structure=["block"] * n, alternatives=False).n_priced
        for n in (12, 24, 36)
    ]
    # Of each length on each part of a host, and (2, 4) has room for the whole only.
    assert n_asked[2] - n_asked[1] == n_asked[1] - n_asked[0] == 12 * 3


def test_a_cache_answers_the_second_time_and_only_for_what_it_is_about(tmp_path):
    asked = []

    def cost(first, last, submesh):
        asked.append((first, last, submesh))
        return [StageCost(2.0, 1, 0, option=(1, "tensor")), StageCost(3.0, 0, 0, 0.5, 7)]

    def solve(about, **options):
        return slice_stages(3, (1, 2), 4, cost, cache=PriceCache(tmp_path, about), **options)

    first = solve("a model")
    n_asked = len(asked)
    second = solve("a model")
    assert len(asked) == n_asked > 0 == second.n_priced
    assert (second.time_s, second.stages) == (first.time_s, first.stages)
    assert second.stages[0].cost.option == (1, "tensor")
    solve("another model")
    assert len(asked) == 2 * n_asked
    assert len(list(tmp_path.iterdir())) == 2
    solve("a model", structure=["x", "x", "x"])
    assert len(asked) > 2 * n_asked


def test_a_cache_cut_off_in_a_line_asks_for_that_cost_again(tmp_path):
    cache = PriceCache(tmp_path, "a model")
    whole = slice_stages(3, (1, 2), 4, uniform, cache=cache)
    text = cache.path.read_text()
    cache.path.write_text(text[:-9])
    again = slice_stages(3, (1, 2), 4, uniform, cache=cache)
    assert again.n_priced == 1
    assert again.stages == whole.stages


def test_a_search_goes_on_when_the_disk_is_full(tmp_path):
    cache = PriceCache(tmp_path, "a model")
    alone = slice_stages(3, (1, 2), 4, uniform)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, before[1]))  # of a file; in a line
    try:
        with pytest.warns(UserWarning, match=rf"no longer kept in {tmp_path}.*make room") as told:
            assert slice_stages(3, (1, 2), 4, uniform, cache=cache) == alone
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(told) == 1
    n_left = [slice_stages(3, (1, 2), 4, uniform, cache=cache).n_priced for _ in range(2)]
    assert 0 < n_left[0] < alone.n_priced
    assert n_left[1] == 0


def test_a_cache_that_cannot_be_written_is_told_before_anything_is_asked(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        slice_stages(3, (1, 2), 4, never, cache=PriceCache(tmp_path / "file", "a model"))


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[[[", b'[1, 2]\n[[], []]\n["k", [[1]]]', b"\0"])
def test_a_cache_with_other_content_asks_again(tmp_path, content):
    cache = PriceCache(tmp_path, "a model")
    cache.path.write_bytes(content)
    first, second = (slice_stages(3, (1, 2), 4, uniform, cache=cache) for _ in range(2))
    assert first.n_priced > second.n_priced == 0


@pytest.mark.parametrize("options", [{"structure": [object()]}, {}], ids=["structure", "option"])
def test_a_cache_refuses_what_cannot_be_written(tmp_path, options):
    def cost(first, last, submesh):
        return StageCost(1.0, 0, 0, option=object())

    with pytest.raises(InvalidInputError, match=r"made of tuples, strings.*; got"):
        slice_stages(1, (1, 1), 1, cost, cache=PriceCache(tmp_path, "x"), **options)


@settings(max_examples=max(100, settings().max_examples // 5))
@given(pipeline_problems(), st.lists(st.integers(1, 5), min_size=1, max_size=3, unique=True))
def test_the_best_number_of_microbatches_is_found(problem, counts):
    def cost(first, last, submesh, n_microbatches):
        return [
            StageCost(each.time_s / n_microbatches, each.fixed_bytes, 0, each.once_s)
            for each in problem.cost(first, last, submesh)
        ]

    def solve(n_microbatches):
        return slice_stages(problem.n_layers, problem.cluster_shape, n_microbatches, cost)

    try:
        slicing = solve(counts)
    except InfeasibleStagesError:
        assume(False)
    each = {count: solve([count]).time_s for count in counts}
    assert slicing.time_s == min(each.values()) == each[slicing.n_microbatches]
    others = {
        int(other.what.split()[0]) for other in slicing.rejected if "microbatch" in other.what
    }
    assert others == set(counts) - {slicing.n_microbatches}


@given(clusters(max_hosts=3), st.integers(1, 3), st.data())
def test_takes_what_a_cluster_of_any_hosts_can_hold(places, n_layers, data):
    assume(places.n_devices <= 6)
    seconds = st.integers(0, 64).map(lambda eighths: eighths / 8)
    times = {
        (first, last, submesh): data.draw(seconds)
        for first in range(n_layers)
        for last in range(first, n_layers)
        for submesh in places.shapes
    }
    best = {}
    for count in range(1, n_layers + 1):
        cuts = itertools.combinations(range(1, n_layers), count - 1)
        for cut, meshes in itertools.product(cuts, itertools.product(places.shapes, repeat=count)):
            if places.can_hold(meshes):
                runs = itertools.pairwise((0, *cut, n_layers))
                each = [times[a, b - 1, mesh] for (a, b), mesh in zip(runs, meshes, strict=True)]
                best[count] = min(best.get(count, 1e9), sum(each) + 2 * max(each))

    def cost(*span):
        return StageCost(times[span], 0, 0)

    if not best:
        with pytest.raises(InfeasibleStagesError):
            slice_stages(n_layers, places, 3, cost)
        return
    slicing = slice_stages(n_layers, places, 3, cost, alternatives=True)
    assert {len(each.spans): each.time_s for each in slicing.alternatives} == best
    assert places.can_hold([stage.submesh for stage in slicing.stages])


def test_says_why_each_number_of_stages_is_impossible():
    # On six devices as parts of 1, 2, 3 and 6, with room for two layers; four together cost None.
    def cost(first, last, submesh):
        return StageCost(1.0, last - first + 1, 0) if last - first < 3 else None

    slicing = slice_stages(4, (1, 6), 2, cost, memory_bytes=2, alternatives=True)
    reasons = {each.what: each.reason for each in slicing.rejected}
    assert reasons == {"1 stage": "always some stage has no cost"}
    assert [len(each.spans) for each in slicing.alternatives] == [2, 3, 4]
    slicing = slice_stages(4, (1, 6), 2, cost, memory_bytes=1, alternatives=True)
    reasons = {each.what: each.reason for each in slicing.rejected}
    assert reasons["2 stages"] == "memory of stage 0: 2 of 1 B"
    slicing = slice_stages(2, (2, 2), 2, cost, n_stages=[1, 2], memory_bytes=2, alternatives=True)
    assert slicing.rejected == ()
    # One host of 3 as one part, or single devices: no two parts are all of it.
    places = Places(((HostKind(3, parts=(1, 3)), 1),))
    slicing = slice_stages(3, places, 2, cost, alternatives=True)
    assert slicing.rejected == (Rejection("2 stages", "cannot cover 3 devices"),)


def test_an_impossible_number_of_stages_is_answered_with_possible_ones():
    message = r"there is no slicing with n_stages=\(9,\) stages; n_stages of 1, 2 would do"
    with pytest.raises(InfeasibleStagesError, match=message):
        slice_stages(4, (1, 2), 2, uniform, n_stages=9)
    message = r"smallest peak is .* \(5 bytes\) .*; n_stages of 2 would do"
    with pytest.raises(InfeasibleStagesError, match=message):
        slice_stages(4, (1, 2), 1, uniform, 3, n_stages=1)


@pytest.mark.parametrize("answer", [3.0, [StageCost(1.0, 0, 0), 3.0], "fast"], ids=str)
def test_rejects_a_cost_that_is_none(answer):
    with pytest.raises(InvalidInputError, match=r"a cost is a StageCost.*; got .* for layers 0-0"):
        slice_stages(1, (1, 1), 1, lambda *_: answer)


@pytest.mark.parametrize(
    "edge",
    [Boundary(0, 1, (2,)), Boundary(1, 1, (1,)), Boundary(0, -1, (1,))],
    ids=str,
)
def test_rejects_a_value_that_is_not_read_after_it_is_made(edge):
    with pytest.raises(
        InvalidInputError, match=r"layers read it after one made it; got edges\[0\]"
    ):
        slice_stages(2, (1, 1), 1, uniform, edges=[edge], transfer_s=lambda *_: 0.0)


def test_rejects_values_without_a_time_and_times_that_are_none():
    edges = [Boundary(0, 1, (1,))]
    with pytest.raises(InvalidInputError, match="got edges and transfer_s=None"):
        slice_stages(2, (1, 1), 1, uniform, edges=edges)
    with pytest.raises(InvalidInputError, match=r"got transfer_s\(1, \(1, 1\), \(1, 1\)\)=-1.0"):
        slice_stages(2, (1, 1), 1, uniform, edges=edges, transfer_s=lambda *_: -1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_bytes": -1}, "memory is finite and not negative.*; got memory_bytes=-1"),
        ({"structure": ["x"]}, "an entry for each layer; got 1 and n_layers=2"),
        ({"schedule": "fast"}, "one of gpipe, 1f1b, .*; got schedule='fast'"),
        ({"n_stages": 0}, "are at least 1.* n_stages=0"),
    ],
    ids=str,
)
def test_rejects_options_that_make_no_sense(options, message):
    with pytest.raises(InvalidInputError, match=message):
        slice_stages(2, (1, 1), 1, uniform, **options)


def test_rejects_no_number_of_microbatches():
    with pytest.raises(InvalidInputError, match=r"got n_layers=1, n_microbatches=\(\)"):
        slice_stages(1, (1, 1), (), uniform)


@pytest.mark.parametrize("alternatives", [None, 3.5, [0], [2.5], "ab"])
def test_alternatives_are_numbers_of_stages(alternatives):
    with pytest.raises(InvalidInputError, match="alternatives True, False or numbers of stages"):
        slice_stages(4, (1, 4), 8, uniform, alternatives=alternatives)
