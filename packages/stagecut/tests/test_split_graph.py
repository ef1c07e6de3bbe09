import math
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
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
from stagecut.base.held_microbatches import gpipe
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


@settings(max_examples=max(100, settings().max_examples // 5))
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


@settings(max_examples=max(100, settings().max_examples // 5))
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


@settings(max_examples=max(100, settings().max_examples // 5))
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
        assert split.time_s <= best * (1 + split.gap) * (1 + 1e-8) or best == 0 < split.gap


@given(graph_splitting_problems())
def test_split_is_the_best_linear_cut_of_its_own_order(problem):
    try:
        split = solve(problem)
    except InfeasibleStagesError:
        return
    reordered = replace(
        problem,
        nodes=tuple(problem.nodes[node] for node in split.order),
        values=split.reordered(problem.values),
    )
    assert brute_force_linear_cut(reordered) == pytest.approx(split.time_s)


@settings(max_examples=max(100, settings().max_examples // 5))
@given(graph_splitting_problems())
def test_one_microbatch_minimises_the_bytes_of_the_edges_between_stages(problem):
    # Rhino, 5.1: sum of F_ij tensor_size(i, j), with a value for each edge.
    edges = [
        Boundary(value.producer, value.n_bytes, (consumer,))
        for value in problem.values
        for consumer in value.consumers
    ]
    nodes = [replace(node, once_s=0.0) for node in problem.nodes]
    split = split_graph(nodes, edges, problem.n_stages, n_microbatches=1, transfer_s=float)
    at = stage_of(split)
    crossing = sum(e.n_bytes for e in edges if at[e.producer] != at[e.consumers[0]])
    assert sum(stage.received_bytes for stage in split.stages) == crossing
    assert split.time_s == pytest.approx(sum(node.time_s for node in nodes) + crossing)


def node(time_s=1.0, fixed_bytes=0, activation_bytes=0, **others):
    return StageCost(time_s, fixed_bytes, activation_bytes, **others)


def edges(*pairs, n_bytes=8):
    return [Boundary(producer, n_bytes, (consumer,)) for producer, consumer in pairs]


TOWERS = [node()] * 8, edges((0, 2), (2, 4), (4, 6), (1, 3), (3, 5), (5, 7), (6, 7)), 2, 8
"""Two towers of four nodes in turns, of which the second reads the end of the first."""


def test_chain_is_cut_as_slice_stages_cuts_it():
    nodes = [node(each) for each in (3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0)]
    values = edges(*pairwise(range(8)))
    split = split_graph(nodes, values, 4, 5, transfer_s=lambda n: n / 16)

    def cost(first, last, submesh):
        if submesh != (1, 1):
            return None
        return node(sum(each.time_s for each in nodes[first : last + 1]) + (0.5 if first else 0))

    sliced = slice_stages(8, (4, 1), 5, cost)
    assert split.time_s == split.linear_s == pytest.approx(sliced.time_s)
    assert [(s.nodes[0], s.nodes[-1]) for s in split.stages] == [
        (s.first, s.last) for s in sliced.stages
    ]


def test_towers_named_in_turns_become_stages_of_one_tower_each():
    split = split_graph(*TOWERS, transfer_s=lambda n: n / 16)
    assert [stage.nodes for stage in split.stages] == [(0, 2, 4, 6), (1, 3, 5, 7)]
    assert split.time_s < split.linear_s


def test_operator_that_shrinks_a_skip_connection_is_where_the_connection_begins():
    # 4 shrinks what 0 hands to 5; the program calls it just before it is needed.
    nodes = [node(), node(), node(), node(), node(0.125), node()]
    values = [Boundary(0, 64, (1, 4)), *edges((1, 2), (2, 3), (3, 5), (4, 5))]
    split = split_graph(nodes, values, 2, 8, transfer_s=lambda n: n / 64)
    assert [stage.nodes for stage in split.stages] == [(0, 1, 2, 4), (3, 5)]
    assert [stage.received_bytes for stage in split.stages] == [0, 16]
    assert split.time_s < split.linear_s


def test_skip_connection_without_operators_leaves_the_linear_cut_the_best():
    nodes = [node() for _ in range(9)]
    values = edges(*pairwise(range(9)), (0, 8), (1, 7), (2, 6))
    split = split_graph(nodes, values, 3, 4, transfer_s=lambda n: n / 64)
    assert split.time_s == split.linear_s


def test_value_that_skips_stages_is_held_by_the_stage_that_made_it():
    values = [Boundary(0, 8, (1, 3)), *edges((1, 2), (2, 3))]
    arguments = [node()] * 4, values, 4, 1
    split = split_graph(*arguments, transfer_s=float, memory_bytes=8)
    assert [stage.held_bytes for stage in split.stages] == [8, 0, 0, 0]
    assert [stage.peak_bytes for stage in split.stages] == [8, 0, 0, 0]
    with pytest.raises(InfeasibleStagesError, match="no split into n_stages=4"):
        split_graph(*arguments, transfer_s=float, memory_bytes=7)


def test_value_that_skips_stages_is_received_once_by_each_stage_that_reads_it():
    values = [Boundary(0, 5, (1, 2, 3, 4)), *edges((1, 2), (2, 3), (3, 4), n_bytes=0)]
    split = split_graph([node()] * 5, values, 4, 1, transfer_s=float)
    assert sum(stage.received_bytes for stage in split.stages) == 15


def test_tolerance_balances_branches_that_no_dependency_orders():
    # Bounds from ancestors and descendants alone would allow all but one node in one stage.
    values = edges((0, 1), (1, 2), (3, 4), (4, 5))
    split = split_graph([node()] * 6, values, 2, 1, transfer_s=float, tolerance=0.0)
    assert sorted(stage.nodes for stage in split.stages) == [(0, 1, 2), (3, 4, 5)]
    assert split.time_s == 6.0


def test_schedule_that_holds_more_microbatches_needs_more_memory():
    nodes = [node(activation_bytes=1)] * 4
    arguments = nodes, edges((0, 1), (1, 2), (2, 3)), 2, 8
    lean = split_graph(*arguments, transfer_s=float, memory_bytes=4)
    assert [stage.peak_bytes for stage in lean.stages] == [4, 2]
    with pytest.raises(InfeasibleStagesError, match="memory_bytes=16;") as caught:
        split_graph(*arguments, transfer_s=float, memory_bytes=4, in_flight=gpipe)
    assert caught.value.peak_bytes == 16


def test_memory_is_counted_to_the_byte():
    nodes = [node(fixed_bytes=2**34 + 1)] * 8
    arguments = nodes, edges((0, 1), (2, 3)), 4, 8
    full = 2 * (2**34 + 1)
    split = split_graph(*arguments, transfer_s=float, memory_bytes=full)
    assert [stage.peak_bytes for stage in split.stages] == [full] * 4
    with pytest.raises(InfeasibleStagesError, match=f"memory_bytes={full};"):
        split_graph(*arguments, transfer_s=float, memory_bytes=full - 1)
    with pytest.raises(InfeasibleStagesError, match=f"memory_bytes={full};"):
        split_graph(*arguments, transfer_s=float, memory_bytes=1)


@pytest.mark.parametrize("seconds_per_byte", [1e-16, 1e-9, 1.0, 1e6])
def test_network_may_be_much_faster_or_slower_than_the_devices(seconds_per_byte):
    nodes = [node(1e-6 * (k % 3 + 1)) for k in range(12)]
    values = edges(*((k, k + 2) for k in range(10)), (10, 11), n_bytes=10**9)
    split = split_graph(nodes, values, 3, 4096, transfer_s=lambda n: n * seconds_per_byte)
    assert split.gap == 0
    assert split.time_s < split.linear_s


def test_stopped_search_returns_the_linear_cut_with_a_bound():
    split = split_graph(*TOWERS, transfer_s=lambda n: n / 16, time_limit_s=0)
    assert split.time_s == split.linear_s
    assert 8 + 7 * 4 <= split.lower_bound_s < split.time_s
    assert split.gap > 0


def test_equal_input_gives_equal_output():
    first, second = (split_graph(*TOWERS, transfer_s=float) for _ in range(2))
    assert first == second


def test_says_which_tolerance_a_linear_cut_would_need():
    arguments = [node(3.0), node(1.0)], edges((0, 1)), 2, 1
    with pytest.raises(
        InfeasibleStagesError, match=r"with only one of the two .* needs tolerance=0\.5 or"
    ):
        split_graph(*arguments, transfer_s=float, tolerance=0.25)
    assert split_graph(*arguments, transfer_s=float, tolerance=0.5).gap == 0


def test_says_that_it_was_stopped_before_it_found_a_split():
    # No run has two of the heavy nodes and two of the light ones.
    nodes = [node(each) for each in (4.0, 4.0, 4.0, 4.0, 1.0, 1.0, 1.0, 1.0)]
    arguments = nodes, edges((0, 4), (1, 5), (2, 6), (3, 7)), 2, 1
    with pytest.raises(UnfinishedSearchError, match="stopped before it found one; got time_limit_"):
        split_graph(*arguments, transfer_s=float, tolerance=0.0, time_limit_s=0)
    split = split_graph(*arguments, transfer_s=float, tolerance=0.0)
    assert split.linear_s is None
    assert str(split).splitlines()[0].endswith("in the order given no cut fits")


@pytest.mark.parametrize(
    "changed",
    [{"n_stages": 0}, {"n_stages": 3}, {"n_microbatches": 0}, {"tolerance": -0.1}],
    ids=str,
)
def test_rejects_sizes_out_of_range(changed):
    arguments = {"n_stages": 2, "n_microbatches": 1, "transfer_s": float} | changed
    with pytest.raises(
        InvalidInputError, match="at least one stage, a node for each stage, and one"
    ):
        split_graph([node()] * 2, edges((0, 1)), **arguments)


@pytest.mark.parametrize("changed", [{"time_limit_s": -1}, {"max_search_nodes": -1}], ids=str)
def test_rejects_negative_limits(changed):
    with pytest.raises(InvalidInputError, match="limits of the search are not negative; got"):
        split_graph([node()] * 2, edges((0, 1)), 2, 1, transfer_s=float, **changed)


@pytest.mark.parametrize(
    "value",
    [
        Boundary(-1, 1, (1,)),
        Boundary(1, 1, (1,)),
        Boundary(0, 1, (2,)),
        Boundary(0, -1, (1,)),
        Boundary(2, 1, ()),
    ],
    ids=str,
)
def test_rejects_values_read_before_they_are_made(value):
    with pytest.raises(InvalidInputError, match="nodes read it after one made it; got values"):
        split_graph([node()] * 2, [value], 2, 1, transfer_s=float)


@pytest.mark.parametrize("seconds", [-1.0, math.inf, math.nan])
def test_rejects_a_transfer_time_that_is_none(seconds):
    with pytest.raises(InvalidInputError, match=r"got transfer_s\(8\)="):
        split_graph([node()] * 2, edges((0, 1)), 2, 1, transfer_s=lambda _: seconds)


def test_says_which_extra_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "stagecut.branches.ilp", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'meshwright-stagecut\[ilp\]'"):
        split_graph([node()], [], 1, 1, transfer_s=float)
