import random

import pytest
from shardspec import (
    COLLECTIVES,
    WHOLE_AXES,
    Layout,
    Mesh,
    Partial,
    Spec,
    reshard,
    reshard_whole_axes,
)
from shardspec.resharding import a_star
from shardspec.testing import check_plan, every_spec

DOZEN = Mesh((2,) * 12, tuple("abcdefghijkl"))
CUBE = Mesh((2, 2, 2), ("x", "y", "z"))


def on_dozen(*dims, partial=()):
    return Layout((4096,) * len(dims), DOZEN, Spec(dims, tuple(map(Partial, partial))))


FORWARD, BACKWARD = tuple(range(12)), tuple(range(11, -1, -1))


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        (on_dozen((), ()), on_dozen(BACKWARD, ())),
        (on_dozen(FORWARD[:6], FORWARD[6:]), on_dozen((), BACKWARD)),
    ],
)
def test_between_specs_of_a_dozen_axes_there_is_a_plan_of_whole_axes(src, dst):
    plan = reshard_whole_axes(src, dst)
    at = src
    for step in plan.steps:
        assert step.src == at
        assert step.kind in WHOLE_AXES
        at = step.dst
    assert at == dst


def test_partial_results_over_a_dozen_axes_are_reduced_at_once():
    plan = reshard_whole_axes(on_dozen((), (), partial=FORWARD), on_dozen((), BACKWARD))
    assert [step.kind for step in plan.steps] == ["reduce_scatter"]
    assert plan.gap == 0


@pytest.mark.parametrize("kinds", [WHOLE_AXES, COLLECTIVES - {"exchange", "collective_permute"}])
def test_in_a_hurry_plans_are_right_and_cost_no_less(monkeypatch, kinds):
    draw = random.Random(0)
    specs = list(every_spec(CUBE, 2))
    sources = draw.sample(specs, 40)
    whole = [spec for spec in specs if not spec.is_partial]
    pairs = [(src, draw.choice(whole)) for src in sources]
    pairs = [tuple(Layout((8, 8), CUBE, spec) for spec in pair) for pair in pairs]
    a_star.fewest_bytes_moves.cache_clear()
    exact = [reshard(*pair, collectives=kinds, max_local_elements=64) for pair in pairs]
    for name, value in (("_EXACT_STATES", 1), ("_HURRIED_STATES", 1), ("_FEW_AXES", 0)):
        monkeypatch.setattr(a_star, name, value)
    a_star.fewest_bytes_moves.cache_clear()
    for pair, best in zip(pairs, exact, strict=True):
        plan = reshard(*pair, collectives=kinds, max_local_elements=64)
        check_plan(plan)
        assert plan.received_bytes(1) >= best.received_bytes(1)
    a_star.fewest_bytes_moves.cache_clear()
