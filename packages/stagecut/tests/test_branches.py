import math
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stagecut import (
    Boundary,
    InfeasibleStagesError,
    InvalidInputError,
    MissingExtraError,
    StageCost,
    UnfinishedSearchError,
    slice_stages,
    split_graph,
)
from stagecut.testing import (
    brute_force_graph_split,
    brute_force_linear_cut,
    graph_split_time_s,
    graph_splitting_problems,
)


def solve(problem, **options):
    return split_graph(
        problem.nodes,
        problem.values,
        problem.n_stages,
        problem.n_microbatches,
        transfer_s=problem.transfer_s,
        tolerance=problem.tolerance,
        memory_bytes=problem.memory_bytes,
        **options,
    )


def stage_of(split):
    return [s for _, s in sorted((i, s) for s, each in enumerate(split.stages) for i in each.nodes)]


@given(graph_splitting_problems())
def test_split_is_as_good_as_brute_force(problem):
    best = brute_force_graph_split(problem)
    if best is None:
        with pytest.raises(InfeasibleStagesError, match="no split into n_stages="):
            solve(problem)
    else:
        split = solve(problem)
        assert split.time_s == pytest.approx(best, rel=1e-8)
        assert split.lower_bound_s == split.time_s
        assert split.gap == 0


@given(graph_splitting_problems())
def test_split_takes_the_time_it_says_and_keeps_to_the_limits(problem):
    try:
        split = solve(problem)
    except InfeasibleStagesError:
        return
    assert sorted(split.order) == list(range(len(problem.nodes)))
    assert split.time_s == pytest.approx(graph_split_time_s(problem, stage_of(split)))
    if problem.memory_bytes is not None:
        assert max(stage.peak_bytes for stage in split.stages) <= problem.memory_bytes


@given(graph_splitting_problems(), st.integers(0, 2))
def test_stopped_search_is_no_worse_than_the_best_linear_cut_and_its_bound_holds(problem, n):
    linear, best = brute_force_linear_cut(problem), brute_force_graph_split(problem)
    try:
        split = solve(problem, max_search_nodes=n)
    except InfeasibleStagesError:
        assert best is None
    except UnfinishedSearchError:
        assert linear is None
    else:
        assert split.linear_s == (None if linear is None else pytest.approx(linear))
        assert split.linear_s is None or split.time_s <= split.linear_s
        assert split.lower_bound_s <= best * (1 + 1e-8)
        assert best <= split.time_s * (1 + 1e-8)
        assert split.gap == pytest.approx(split.time_s / max(split.lower_bound_s, 1e-300) - 1) or (
            split.lower_bound_s == split.gap == 0
        )
