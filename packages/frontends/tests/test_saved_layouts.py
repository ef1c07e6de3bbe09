"""Layers save what backward reads in the layout in which forward reads it, if that is faster."""

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import autoshard
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel import Cluster
from frontends.answer.plan import Plan
from frontends.jax.testing import Example, mlp, small_gpt
from frontends.jax.trace.trace import Trace
from frontends.layers.cheap import is_product
from frontends.layers.layers import LayeredStep, layer, layer_as
from frontends.layers.saved_layouts import is_saved
from frontends.search.plan_options import PlanOptions
from frontends.search.planner import Planner
from frontends.step.step import BACKWARD, FORWARD
from shardspec import Spec

HOST = Cluster.preset("two-hosts").resized(n_hosts=1, devices_per_host=4)


@cache
def experts() -> Example:
    """A mixture of four experts, each of which takes a quarter of the tokens of each example."""
    rng = np.random.default_rng(0)
    width, hidden, n_experts, tokens = 64, 128, 4, 64

    def numbers(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape, scale=0.3), jnp.float32)

    params = {
        "route": numbers(width, n_experts),
        "up": numbers(n_experts, width, hidden),
        "down": numbers(n_experts, hidden, width),
    }

    def loss(params: Any, x: jax.Array) -> jax.Array:
        gates = jax.nn.softmax(x @ params["route"])
        place = jnp.arange(tokens) % (tokens // n_experts)
        sent = jnp.einsum("gse,sc->gsec", gates, jax.nn.one_hot(place, tokens // n_experts))
        to_experts = jnp.einsum("gsec,gsm->egcm", sent, x)
        hidden = jax.nn.gelu(jnp.einsum("egcm,emh->egch", to_experts, params["up"]))
        made = jnp.einsum("egch,ehm->egcm", hidden, params["down"])
        y = jnp.einsum("gsec,egcm->gsm", sent, made)
        return jnp.mean((x + y) ** 2)

    def step(params: Any, state: Any, x: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), state, value

    return Example(step, params, (), numbers(16, tokens, width))


@cache
def traced() -> Trace:
    return experts().trace(1)


def planned(*, choose_saved: bool) -> tuple[LayeredStep, Plan]:
    """Experts on different devices; examples on different devices."""
    layered = layer(traced().step, choose_saved=choose_saved)
    pins = {f"params['{name}']": Spec.parse("S0RR") for name in ("up", "down")}
    batch = next(
        n for n in layered.step.graph.inputs if layered.step.graph.value(n).role == "batch"
    )
    pins[batch] = Spec.parse("S0RR")
    return layered, Planner(layered, HOST, PlanOptions(pin=pins, stages=1)).best()


def n_all_to_all(plan: Plan) -> dict[str, int]:
    kinds = Counter((c.phase, c.kind) for stage in plan.stages for c in stage.collectives)
    return {"forward": kinds[FORWARD, "all_to_all"], "backward": kinds[BACKWARD, "all_to_all"]}


def test_examples_are_sent_to_experts_once_in_each_direction() -> None:
    """Two all-to-alls in forward and two in backward, as in GShard and Alpa."""
    _, plan = planned(choose_saved=True)
    _, again = planned(choose_saved=False)
    assert n_all_to_all(plan) == {"forward": 2, "backward": 2}
    assert n_all_to_all(again)["backward"] > 2
    assert plan.step_s < again.step_s


def test_the_plan_runs() -> None:
    layered, plan = planned(choose_saved=True)
    plan.verify()
    assert any(is_saved(p.operator) for stage in plan.stages for p in stage.placements)
    assert layer_as(traced().step, plan).step == layered.step


def test_plans_that_save_nothing_in_other_layouts_are_read() -> None:
    layered, plan = planned(choose_saved=False)
    assert layer_as(traced().step, plan).step == layered.step


@pytest.mark.parametrize("example", [small_gpt(2), mlp()], ids=["gpt", "mlp"])
def test_steps_without_experts_stay_as_they_are(example: Example) -> None:
    step = example.trace(1).step
    assert layer(step) == layer(step, choose_saved=False)


def test_backward_reads_what_is_saved() -> None:
    layered = layer(traced().step)
    graph = layered.step.graph
    saving = [op for op in graph.operators if is_saved(op.name)]
    assert saving
    for op in saving:
        (name,), (new,) = op.inputs, op.outputs
        assert op.phase == FORWARD
        assert graph.value(new) == replace(graph.value(name), name=new)
        within = layered.layer_of[op.name]
        readers = [graph.operators[i] for i in graph.readers[name]]
        here = [reader for reader in readers if layered.layer_of[reader.name] == within]
        assert any(is_product(reader) for reader in here)
        assert all(reader.phase == FORWARD for reader in here)
        assert {graph.operators[i].phase for i in graph.readers[new]} == {BACKWARD}


def test_saving_takes_no_time() -> None:
    layered, plan = planned(choose_saved=True)
    (stage,) = plan.stages
    assert stage.sharding is not None
    graph = stage.sharding.graph
    saving = next(op for op in graph.operators if is_saved(op.name))
    assert saving.accesses is not None
    assert (*saving.accesses.times, saving.accesses.launches, saving.flops) == (0.0, 0.0, 0.0, 0.0)
    autoshard.verify(graph)
    assert layered.step.fingerprint == traced().step.fingerprint
