"""Searches that end before they are done."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel import Cluster
from frontends.answer.plan import Plan
from frontends.errors import NoPlanError, PlanError
from frontends.jax import parallelize, plan_for
from frontends.search.deadline import Deadline
from frontends.search.plan_options import PlanOptions

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
NO_TIME, MUCH_TIME = 1e-9, 1e9
W, X = np.ones((16, 16), np.float32) / 16, np.ones((32, 16), np.float32)


def step(w: Any, x: Any) -> Any:
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    return w - 0.1 * gradient, loss


def planned(**options: Any) -> Plan:
    return plan_for(step, (W, X), CLUSTER, **options).plan


def test_the_fastest_plan_that_was_tried_is_taken(example_plan: Plan) -> None:
    deadline = Deadline(PlanOptions(search_deadline_s=MUCH_TIME))

    def search() -> Plan:
        for what, seconds in (("slow", 3.0), ("fast", 1.0), ("middle", 2.0)):
            deadline.options.tell_plan(what, replace(example_plan, step_s=seconds))
        deadline.options.tell_plan("large", "it does not fit")
        deadline._end_s = 0.0
        deadline.options.tell("pricing stages", 1, 9)
        raise AssertionError("the time is over")

    plan = deadline.search(search)
    assert plan.step_s == 1.0
    *others, rest = plan.alternatives
    assert [(other.name, other.step_s) for other in others] == [("middle", 2.0), ("slow", 3.0)]
    assert rest.step_s is None
    assert "over while pricing stages" in rest.reason


def test_what_is_tried_again_is_taken_as_it_was_fastest(example_plan: Plan) -> None:
    deadline = Deadline(PlanOptions(search_deadline_s=MUCH_TIME))

    def search() -> Plan:
        for seconds in (2.0, 1.0, 3.0):
            deadline.options.tell_plan("2 stages", replace(example_plan, step_s=seconds))
        deadline._end_s = 0.0
        deadline.options.tell("pricing stages", 1, 9)
        raise AssertionError("the time is over")

    plan = deadline.search(search)
    assert plan.step_s == 1.0
    assert len(plan.alternatives) == 1


def test_the_bound_is_one_for_all_that_was_not_tried() -> None:
    """Also for other numbers of microbatches, and where less is computed again."""
    fastest_s = planned(memory_bytes=1 << 50).step_s
    for options in ({}, {"strategy": "equal_layers"}):
        ended = planned(search_deadline_s=NO_TIME, **options)
        assert 0 < ended.lower_bound_s <= fastest_s
        assert (
            ended.lower_bound_s == planned(search_deadline_s=NO_TIME, microbatches=1).lower_bound_s
        )


def test_a_plan_says_by_what_strategy_it_is() -> None:
    for strategy in ("zero2", "equal_layers", "search"):
        assert planned(search_deadline_s=NO_TIME, strategy=strategy).strategy == strategy
    assert planned(search_deadline_s=NO_TIME).strategy == "data_parallel"  # is tried first


def test_a_search_goes_on_until_there_is_a_plan(example_plan: Plan) -> None:
    deadline = Deadline(PlanOptions(search_deadline_s=NO_TIME))
    tried = itertools.count()

    def search() -> Plan:
        for _ in range(3):
            deadline.options.tell("pricing stages", next(tried), 9)
            deadline.options.tell_plan("large", "it does not fit")
        deadline.options.tell_plan("first", example_plan)
        raise AssertionError("the time is over")

    assert deadline.search(search).step_s == example_plan.step_s
    assert next(tried) == 3


def test_a_search_that_need_not_find_anything_ends_at_once() -> None:
    deadline = Deadline(PlanOptions(search_deadline_s=NO_TIME), must_find=False)

    def search() -> Plan:
        deadline.options.tell("tracing", 0, 1)
        raise AssertionError("the time is over")

    with pytest.raises(NoPlanError, match="no plan was found in 1e-09 s"):
        deadline.search(search)


def test_progress_and_tries_are_told_as_without_a_deadline() -> None:
    told: list[str] = []
    planned(search_deadline_s=MUCH_TIME, on_plan=lambda what, _: told.append(what))
    free: list[str] = []
    planned(on_plan=lambda what, _: free.append(what))
    assert told == free


def test_with_much_time_the_plan_is_that_of_a_free_search() -> None:
    free = planned()
    assert replace(planned(search_deadline_s=MUCH_TIME), options=free.options) == free


def test_a_plan_of_no_time_says_so_and_computes_what_one_device_does() -> None:
    plan = planned(search_deadline_s=NO_TIME, microbatches=2)
    assert plan.alternatives[-1].name == "what was not tried"
    assert "search_deadline_s=1e-09 was over" in str(plan)
    assert 0 < plan.lower_bound_s <= plan.step_s
    plan.verify()
    assert Plan.from_json(plan.to_json()) == plan
    ours = parallelize(step, cluster=CLUSTER, plan=plan)
    new, loss = ours(W, X)
    expected = step(W, X)
    np.testing.assert_allclose(np.asarray(new), expected[0], rtol=1e-5)
    np.testing.assert_allclose(float(loss), expected[1], rtol=1e-5)


@pytest.mark.parametrize("seconds", [0, -1.0, "5", True, float("nan")])
def test_a_deadline_is_a_positive_number(seconds: Any) -> None:
    with pytest.raises(PlanError, match="search_deadline_s is a positive number of seconds"):
        PlanOptions(search_deadline_s=seconds)
