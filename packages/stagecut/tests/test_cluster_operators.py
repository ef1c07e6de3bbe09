import itertools
import math
import operator
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from stagecut import Boundary, InfeasibleClusteringError, InvalidInputError, cluster_operators
from stagecut.testing import brute_force_clustering, clustering_problems, layer_quality


def solve(problem):
    return cluster_operators(problem.flops, problem.values, problem.n_layers, problem.delta)


@given(clustering_problems())
def test_equals_brute_force(problem):
    best = brute_force_clustering(problem)
    if best is None:
        with pytest.raises(InfeasibleClusteringError):
            solve(problem)
        return
    layers = solve(problem)
    _, received, squares = layer_quality(problem, layers)
    assert (received, squares) == best


@settings(max_examples=max(100, settings().max_examples // 5))
@given(clustering_problems(max_operators=40))
def test_equals_the_dynamic_program_of_the_paper(problem):
    best = slow_clustering(problem)
    if best is None:
        with pytest.raises(InfeasibleClusteringError):
            solve(problem)
        return
    _, received, squares = layer_quality(problem, solve(problem))
    assert (received, squares) == best


def slow_clustering(problem):
    """Eq. 6 word by word, then again for the squares: O(K^2 L) steps over pairs of cuts."""
    n = len(problem.flops)
    limit = (1 + problem.delta) * sum(problem.flops) / problem.n_layers
    runs = {}
    for first, last in itertools.combinations_with_replacement(range(n), 2):
        work = sum(problem.flops[first : last + 1])
        if work <= limit * (1 + 1e-12):
            runs[first, last + 1] = work**2, layer_quality(problem, [(first, last)])[1]

    def least(value, combine, start):
        table = {0: start}
        for _ in range(problem.n_layers):
            ways = [(k, combine(table[i], value[i, k])) for i, k in value if i in table]
            table = {k: min(way for end, way in ways if end == k) for k, _ in ways}
        return table.get(n)

    received = least({run: n_bytes for run, (_, n_bytes) in runs.items()}, max, 0)
    if received is None:
        return None
    within = {run: squares for run, (squares, n_bytes) in runs.items() if n_bytes <= received}
    return received, least(within, operator.add, 0)


@given(clustering_problems())
def test_layers_take_every_operator_once_in_order(problem):
    layers = solve(replace(problem, delta=math.inf))
    assert len(layers) == problem.n_layers
    assert [k for first, last in layers for k in range(first, last + 1)] == list(
        range(len(problem.flops))
    )
    assert all(first <= last for first, last in layers)


@given(clustering_problems(), st.sampled_from((0.0, 0.5, 1.0, math.inf)))
def test_more_imbalance_never_makes_a_layer_receive_more(problem, more):
    assume(brute_force_clustering(problem) is not None)
    _, received, _ = layer_quality(problem, solve(problem))
    relaxed = replace(problem, delta=problem.delta + more)
    assert layer_quality(problem, solve(relaxed))[1] <= received


@settings(max_examples=max(100, settings().max_examples // 5))
@given(clustering_problems(), st.sampled_from((2.0**-1060, 3.0, 1e307)))
def test_the_unit_of_flops_does_not_matter(problem, unit):
    assume(brute_force_clustering(problem) is not None)
    scaled = replace(problem, flops=tuple(each * unit for each in problem.flops))
    quality = layer_quality(problem, solve(problem))
    assert layer_quality(problem, solve(scaled)) == quality


def test_uniform_layers_are_chosen_among_equal_communication():
    assert cluster_operators((1.0,) * 6, (), 3, delta=8.0) == ((0, 1), (2, 3), (4, 5))


def test_a_layer_may_receive_more_than_it_could_if_another_receives_still_more_anyway():
    # A first cut before operator 2 moves less than one before operator 1, but less uniformly; the
    # layer of operator 3 receives 9 bytes in any case.
    values = (Boundary(0, 2, (1,)), Boundary(1, 1, (2,)), Boundary(0, 9, (3,)))
    assert cluster_operators((2.0, 1.0, 1.0, 2.0), values, 3, 1.0) == ((0, 0), (1, 2), (3, 3))


@given(clustering_problems())
def test_the_error_names_the_smallest_delta_that_works(problem):
    problem = replace(problem, delta=0.0)
    assume(brute_force_clustering(problem) is None)
    with pytest.raises(InfeasibleClusteringError, match="raise delta or take fewer") as caught:
        solve(problem)
    smallest = caught.value.smallest_delta
    assert brute_force_clustering(replace(problem, delta=smallest * (1 - 1e-6))) is None
    assert len(solve(replace(problem, delta=smallest))) == problem.n_layers


@pytest.mark.parametrize(
    ("n_layers", "delta"), [(0, 0.5), (4, 0.5), (2, -0.1), (2, math.nan)], ids=str
)
def test_rejects_impossible_sizes(n_layers, delta):
    with pytest.raises(InvalidInputError, match=r"at least one layer.* 3 operators"):
        cluster_operators((1.0, 1.0, 1.0), (), n_layers, delta)


@pytest.mark.parametrize("flops", [-1.0, math.inf, math.nan, 10**400], ids=str)
def test_rejects_flops_that_are_no_number_of_operations(flops):
    with pytest.raises(InvalidInputError, match=r"FLOPs are finite .* got flops\[1\]="):
        cluster_operators((1.0, flops), (), 1)
