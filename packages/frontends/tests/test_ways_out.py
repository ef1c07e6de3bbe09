"""What an error names that would make a step fit."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from costmodel import Cluster
from frontends.answer.plan import Plan
from frontends.errors import NoPlanError, PlanError, WayOut
from frontends.jax import plan_for
from frontends.jax.trace.trace import trace
from frontends.search.plan_options import PlanOptions
from frontends.search.ways_out import Change, with_half_state, with_ways_out

HOST = Cluster.preset("two-hosts").resized(n_hosts=1, devices_per_host=2)
ADAM = optax.adam(1e-3)
W = {name: np.ones((64, 64), np.float32) / 64 for name in "abcd"}
X = np.ones((16, 64), np.float32)
ARGUMENTS = (W, ADAM.init(W), X)
FEW_BYTES = 125_000
"""Less than half of what weights, Adam's state and gradients take, and more than a quarter."""


def step(w: Any, state: Any, x: Any) -> Any:
    def loss_of(w: Any) -> Any:
        hidden = x
        for each in w.values():
            hidden = jnp.tanh(hidden @ each)
        return jnp.mean(hidden**2)

    loss, gradient = jax.value_and_grad(loss_of)(w)
    updates, state = ADAM.update(gradient, state)
    return optax.apply_updates(w, updates), state, loss


def planned(cluster: Cluster = HOST, **options: Any) -> Plan:
    return plan_for(step, ARGUMENTS, cluster, **options).plan


def ways(**options: Any) -> dict[str, WayOut]:
    """What the error of a step that does not fit names."""
    with pytest.raises(NoPlanError, match="What runs: ") as refused:
        planned(**options)
    assert all(str(way) in str(refused.value) for way in refused.value.ways)
    seconds = [way.step_s for way in refused.value.ways]
    assert seconds == sorted(seconds)
    return {way.change: way for way in refused.value.ways}


def ways_where(
    fits: Callable[[Cluster, PlanOptions, bool], bool], plan: Plan, **options: Any
) -> list[str]:
    """The changes that are named if what fits is known."""

    def search(where: Cluster, how: PlanOptions, change: Change) -> Plan:
        if not fits(where, how, change is with_half_state):
            raise NoPlanError("too large")
        return replace(plan, step_s=1.0 if how.remat is None else 2.0)

    error = with_ways_out(NoPlanError("why"), search, HOST, PlanOptions(**options))
    assert str(error).startswith("why")
    assert all(way.step_s == ("remat" in options) + 1.0 for way in error.ways)
    return [way.change for way in error.ways]


def test_options_are_left_out_one_by_one() -> None:
    asked = {"strategy": "data_parallel", "microbatches": 1}
    alone = planned(**asked)
    limit = alone.memory_bytes * 9 // 10
    found = ways(**asked, memory_bytes=limit)
    sharded = planned(microbatches=1, memory_bytes=limit)
    assert sharded.step_s <= found["without strategy="].step_s
    assert found["without strategy="].memory_bytes <= limit
    assert found["without memory_bytes="].step_s <= alone.step_s


def test_options_are_left_out_together_if_none_of_them_is_enough(example_plan: Plan) -> None:
    def fits(where: Cluster, how: PlanOptions, half: bool) -> bool:
        return how.zero is None and how.stages is None

    assert ways_where(fits, example_plan, zero=0, stages=1) == ["without zero=, stages="]


def test_more_devices_are_named_where_they_are_enough() -> None:
    way = ways(strategy="zero", memory_bytes=FEW_BYTES)["4 devices on 2 hosts"]
    plan = planned(HOST.resized(n_hosts=2), strategy="zero", memory_bytes=FEW_BYTES)
    assert plan.step_s <= way.step_s
    assert way.memory_bytes <= FEW_BYTES


@pytest.mark.parametrize("n_hosts", [2, 3, 8])
def test_the_fewest_devices_that_are_tried_and_enough_are_named(
    n_hosts: int, example_plan: Plan
) -> None:
    def fits(where: Cluster, how: PlanOptions, half: bool) -> bool:
        return where.n_hosts >= n_hosts

    hosts = {2: 2, 3: 4, 8: 8}[n_hosts]
    assert ways_where(fits, example_plan) == [f"{2 * hosts} devices on {hosts} hosts"]


def test_what_needs_more_devices_and_fewer_options_is_named(example_plan: Plan) -> None:
    def fits(where: Cluster, how: PlanOptions, half: bool) -> bool:
        if where.n_hosts > 1 and how.dp is not None:
            raise PlanError("dp=2 and tp=1 are for 2 devices")
        return where.n_hosts > 1

    assert ways_where(fits, example_plan, dp=2, tp=1) == ["4 devices on 2 hosts, without dp=, tp="]


def test_memory_beyond_that_of_the_devices_is_not_left_out(example_plan: Plan) -> None:
    more = 2 * HOST.device.memory_bytes

    def fits(where: Cluster, how: PlanOptions, half: bool) -> bool:
        return how.zero is None and how.stages is None and how.memory_bytes == more

    asked: dict[str, Any] = {"zero": 0, "stages": 1, "memory_bytes": more}
    assert ways_where(fits, example_plan, **asked) == ["without zero=, stages="]


def test_options_that_keep_nothing_from_running_stay(example_plan: Plan) -> None:
    def fits(where: Cluster, how: PlanOptions, half: bool) -> bool:
        assert (how.level, how.n_layers) == ("O3", 4)
        return how.zero is None and how.stages is None

    asked: dict[str, Any] = {"zero": 0, "stages": 1, "level": "O3", "n_layers": 4}
    assert ways_where(fits, example_plan, **asked) == ["without zero=, stages="]


def test_what_recomputes_is_tried_first_and_only_if_it_may(example_plan: Plan) -> None:
    seen: list[str | None] = []

    def fits(where: Cluster, how: PlanOptions, half: bool) -> bool:
        seen.append(how.remat)
        return half

    assert ways_where(fits, example_plan) == ["optimizer state in bfloat16"]
    assert seen == ["all", None] * 4
    seen.clear()
    assert ways_where(fits, example_plan, remat="cheap") == ["optimizer state in bfloat16"]
    assert seen[:3] == ["all", None, "cheap"]  # without remat=, and with it on two hosts
    assert seen[-1] == "cheap"


def test_state_in_half_precision_takes_half_the_bytes() -> None:
    whole = trace(step, ARGUMENTS, batch_argnums=(2,), microbatches=1).step
    half = with_half_state(whole)
    assert half.graph.misfit is None

    def state_bytes(each: Any) -> int:
        values = [each.graph.value(name) for name in each.graph.inputs]
        return sum(v.n_bytes for v in values if v.role == "optimizer_state" and v.shape)

    assert state_bytes(half) == state_bytes(whole) // 2
    assert "optimizer state in bfloat16" in ways(strategy="zero", memory_bytes=FEW_BYTES)


def test_an_optimizer_without_state_is_not_made_smaller() -> None:
    def descend(w: Any, x: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        return w - 0.1 * gradient, loss

    traced = trace(descend, (W["a"], X), batch_argnums=(1,), microbatches=1).step
    with pytest.raises(NoPlanError, match="no state in float32"):
        with_half_state(traced)


def test_an_error_is_sent_to_another_process_whole() -> None:
    with pytest.raises(NoPlanError) as refused:
        planned(strategy="zero", memory_bytes=FEW_BYTES)
    sent = pickle.loads(pickle.dumps(refused.value))
    assert (str(sent), sent.ways) == (str(refused.value), refused.value.ways)


def test_nothing_is_searched_without_advice() -> None:
    with pytest.raises(NoPlanError) as refused:
        planned(memory_bytes=1000, advise=False)
    assert refused.value.ways == ()
    assert "What runs" not in str(refused.value)


def test_a_watcher_sees_only_plans_of_what_was_asked_for() -> None:
    tried: list[Plan | str] = []
    with pytest.raises(NoPlanError, match="What runs"):
        planned(strategy="zero", memory_bytes=FEW_BYTES, on_plan=lambda _, plan: tried.append(plan))
    assert not any(isinstance(plan, Plan) for plan in tried)
