"""A search can be watched: every plan that is tried is told, and the best of them is the plan."""

from io import StringIO

import pytest
from costmodel import Cluster
from frontends.answer.plan import Plan
from frontends.cli.watch import SearchDisplay
from frontends.jax import plan_for
from frontends.jax.testing import EXAMPLES
from rich.console import Console

CLUSTER = Cluster.preset("two-hosts").resized(n_hosts=2, devices_per_host=2)


def told() -> tuple[Plan, list[tuple[str, Plan | str]]]:
    """A plan, and all that was told while it was searched."""
    tried: list[tuple[str, Plan | str]] = []
    example = EXAMPLES["mlp"]()
    plan = plan_for(
        example.function,
        example.arguments,
        CLUSTER,
        on_plan=lambda what, plan: tried.append((what, plan)),
    ).plan
    return plan, tried


def test_the_plan_is_the_best_that_was_told() -> None:
    plan, tried = told()
    plans = [p for _, p in tried if isinstance(p, Plan)]
    assert plan.step_s == min(p.step_s for p in plans)
    assert {len(p.stages) for p in plans} >= {1, 2}
    assert "on_plan" not in dict(plan.options)
    priced = [a.name for a in plan.alternatives if a.step_s is not None]
    assert len(plans) >= len(priced)


def test_without_a_watch_the_plan_is_the_same() -> None:
    example = EXAMPLES["mlp"]()
    watched, _ = told()
    assert (
        plan_for(example.function, example.arguments, CLUSTER).plan.to_json() == watched.to_json()
    )


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_watch_shows_the_best_the_bound_and_what_is_tried(is_terminal: bool) -> None:
    plan, tried = told()
    file = StringIO()
    console = Console(file=file, force_terminal=is_terminal, width=80, color_system=None)
    with SearchDisplay(console) as watch:
        watch.progress("pricing stages", 1, 1200)
        for what, found in tried:
            watch.on_plan(what, found)
    text = file.getvalue()
    assert "\u2026" not in text
    assert "best so far" in text
    if not is_terminal:
        assert [line.split(": ")[0] for line in text.splitlines()] == [what for what, _ in tried]
        return
    assert f"Plans tried: {len(tried)}. Best so far: " in text
    assert "times the bound" in text
    assert "pricing stages: 1 of 1,200" in text
    best = next(what for what, p in tried if isinstance(p, Plan) and p.step_s == plan.step_s)
    assert best in " ".join(text.split())


def test_a_watch_of_a_search_without_a_plan_says_so() -> None:
    file = StringIO()
    with SearchDisplay(
        Console(file=file, force_terminal=True, width=80, color_system=None)
    ) as watch:
        watch.on_plan("zero, 8 microbatches", "a stage does not fit the memory")
    assert "Plans tried: 1; none runs yet" in file.getvalue()
