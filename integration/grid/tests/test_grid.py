"""No plan that experts set by hand is faster than the plan that is found, by the same prices."""

import random
from collections.abc import Iterator

import pytest
from costmodel import Cluster
from grid.cases import CLUSTERS, DAY, MODELS, Case
from grid.points import Point, plan_at, planned, points

A_DAY, A_NIGHT = 12, 60
"""Points of the grid that are planned for each pair of a model and a cluster."""

GAP = 1.01
"""A search ends where nothing seems 1 % faster."""


def faster(case: Case, cluster: Cluster, n: int) -> Iterator[tuple[Point, float, float]]:
    """Points whose plans are faster than the one that is found, with both times."""
    example = case.example()
    found = planned(example, cluster)
    every = list(points(cluster, case.batch))
    fitting = 0
    for point in random.Random(0).sample(every, n):
        plan = plan_at(point, example, cluster)
        fitting += plan is not None
        if plan is not None and plan.step_s * GAP < found.step_s:
            yield point, plan.step_s, found.step_s
    assert fitting > 0, "a grid of which nothing fits shows nothing"


@pytest.mark.parametrize("name", DAY)
def test_no_plan_of_the_grid_is_faster(name: str) -> None:
    case, cluster = DAY[name]
    assert list(faster(case, cluster, A_DAY)) == []


@pytest.mark.nightly
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_no_plan_of_the_whole_grid_is_faster(model: str, cluster: str) -> None:
    assert list(faster(MODELS[model], CLUSTERS[cluster], A_NIGHT)) == []
