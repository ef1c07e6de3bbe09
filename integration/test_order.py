"""A plan depends on its step, cluster and options only, not on what the process planned before."""

import json
import random
import sys
from pathlib import Path

import pytest
from launching import run
from order.plans import CASES, CLUSTERS, STEPS

ORDER = Path(__file__).parent / "order"
DAILY = (
    "layers on two-hosts",
    "layers on fast-devices",
    "attention-bfloat16 on two-hosts",
)
"""Cases with the same links and other devices, then with another framework."""


def planned(names: list[str]) -> dict[str, str]:
    """The plans of these cases, made in this order in a new process."""
    ended = run([sys.executable, str(ORDER), *names], deadline_s=300 + 30 * len(names))
    assert ended.status == 0, ended.output
    return dict(zip(names, json.loads(ended.output.splitlines()[-1]), strict=True))


def alone(names: list[str]) -> dict[str, str]:
    """The plans of these cases, each made in a process that plans nothing else."""
    return {name: planned([name])[name] for name in names}


def test_a_plan_made_after_others_is_that_of_a_fresh_process() -> None:
    together = planned(list(DAILY))
    later = list(DAILY[1:])  # the first one has no plan before it
    fresh = alone(later)
    assert [name for name in later if together[name] != fresh[name]] == []


def test_every_step_and_every_cluster_is_planned() -> None:
    assert len(CASES) == len(STEPS) * len(CLUSTERS)
    assert set(DAILY) <= set(CASES)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_planning_gives_the_same_plans(seed: int) -> None:
    drawn = random.Random(seed)
    names = drawn.sample(sorted(CASES), 12)
    fresh = alone(names)
    for _ in range(3):
        together = planned(drawn.sample(names, len(names)))
        assert [name for name in names if together[name] != fresh[name]] == []
