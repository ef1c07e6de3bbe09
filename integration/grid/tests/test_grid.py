"""No plan that experts set by hand is faster than the plan that is found, by the same prices."""

import math
import random
from collections.abc import Iterator

import pytest
from costmodel import Cluster
from frontends import NoPlanError
from grid.cases import CLUSTERS, DAY, MODELS, Case
from grid.points import Point, plan_at, planned, points

A_DAY, A_NIGHT = 5, 60
"""Points of the grid that are planned for each pair of a model and a cluster."""

GAP = 1.01
"""A search ends where nothing seems 1 % faster."""


def faster(case: Case, cluster: Cluster, n: int) -> Iterator[tuple[Point, float, float]]:
    """Points whose plans are faster than the one that is found, with both times.

    If none is found, every point that has a plan is faster.
    """
    example = case.example()
    try:
        found_s = planned(example, cluster).step_s
    except NoPlanError:
        found_s = math.inf
    for point in random.Random(0).sample(list(points(cluster, case.batch)), n):
        plan = plan_at(point, example, cluster)
        if plan is not None and plan.step_s * GAP < found_s:
            yield point, plan.step_s, found_s


@pytest.mark.parametrize("name", DAY)
def test_the_grid_has_plans(name: str) -> None:
    """A grid of which nothing fits would show nothing."""
    case, cluster = DAY[name]
    example = case.example()
    every = random.Random(0).sample(list(points(cluster, case.batch)), A_DAY)
    assert any(plan_at(point, example, cluster) is not None for point in every)


@pytest.mark.parametrize("name", DAY)
def test_no_plan_of_the_grid_is_faster(name: str) -> None:
    case, cluster = DAY[name]
    assert list(faster(case, cluster, A_DAY)) == []


@pytest.mark.nightly
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_no_plan_of_the_whole_grid_is_faster(model: str, cluster: str) -> None:
    assert list(faster(MODELS[model], CLUSTERS[cluster], A_NIGHT)) == []
