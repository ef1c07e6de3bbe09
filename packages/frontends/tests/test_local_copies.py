"""What is cheap to make of the batch or of nothing is made on every stage, and never sent."""

import random
from functools import cache
from itertools import pairwise
from typing import Any

import autoshard
import frontends.jax as mw
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from costmodel import Cluster
from frontends.answer.plan import Plan
from frontends.jax.run.runtime import Runtime
from frontends.jax.testing import Example
from frontends.jax.trace.trace import trace
from frontends.layers.layers import LayeredStep, layer, layer_as
from frontends.layers.local_copies import is_local_copy
from frontends.layers.recompute import recomputed
from frontends.layers.replicas import copied_as
from frontends.plan.plan_fields import Remat
from frontends.step.step import BACKWARD, FORWARD, TrainingStep
from frontends.testing import random_plan
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Mesh

HOST = Cluster.preset("two-hosts").resized(n_hosts=1, devices_per_host=4)
MESHES = (
    Mesh((2,), ("x",), (0, 1)),
    Mesh((1,), ("x",), (6,)),
    Mesh((2, 2), ("x", "y"), (2, 3, 4, 5)),
)
N_BLOCKS = 6


@cache
def masked() -> Example:
    """Blocks of attention that all read one mask, one table of rotations and one frozen scale.

    The mask is made of the batch, the table of nothing.
    """
    rng = np.random.default_rng(0)
    width, length, vocabulary = 8, 8, 16

    def numbers(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape, scale=0.3), jnp.float32)

    params = {
        "embedding": numbers(vocabulary, width),
        "blocks": [{"qkv": numbers(width, 3 * width), "mlp": numbers(width, width)}] * N_BLOCKS,
    }
    scale = jnp.full((width,), 0.9)

    def loss(params: Any, scale: jax.Array, tokens: jax.Array) -> jax.Array:
        positions = jnp.arange(length)
        mask = (positions[:, None] >= positions) & (tokens > 0)[:, None, :]
        angles = positions[:, None] / 10.0 ** jnp.arange(width)
        cosines, shrunk = jnp.cos(angles), jnp.abs(scale) * 0.5
        x = params["embedding"][tokens]
        for block in params["blocks"]:
            q, k, v = jnp.split(x @ block["qkv"], 3, axis=-1)
            scores = jnp.where(mask, (q * cosines) @ (k * cosines).mT, -1e9)
            x = x + jax.nn.softmax(scores) @ v * shrunk
            x = x + jnp.tanh(x @ block["mlp"])
        logits = x @ params["embedding"].T
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens)
        return jnp.mean(losses * (tokens > 0))

    def step(params: Any, scale: Any, tokens: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, scale, tokens)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    tokens = rng.integers(0, vocabulary, (8, length)).astype(np.int32)
    return Example(step, params, scale, tokens)


@cache
def layered(remat: Remat = "none", *, send_less: bool = True) -> LayeredStep:
    step = masked().trace(4).step
    return layer(recomputed(step, layer(step).layer_of, remat), send_less=send_less)


SPANS = st.sets(st.integers(1, layered().n_layers - 1), max_size=4).map(
    lambda cuts: [(a, b - 1) for a, b in pairwise([0, *sorted(cuts), layered().n_layers])]
)


def crossing(step: LayeredStep, spans: list[tuple[int, int]]) -> set[str]:
    return {name for name, phase, *_ in step.exchanges(spans) if phase in ("forward", "backward")}


@given(SPANS, st.sampled_from(["none", "cheap", "all"]))
def test_only_activations_and_gradients_cross(spans: Any, remat: Remat) -> None:
    step, plain = layered(remat), layered(remat, send_less=False)
    assert step.n_layers == plain.n_layers
    assert crossing(step, spans) <= crossing(plain, spans)
    assert len(crossing(step, spans)) == 2 * (len(spans) - 1)
    assert len(spans) == 1 or len(crossing(plain, spans)) > len(crossing(step, spans))


@given(SPANS, st.sampled_from(["none", "cheap", "all"]))
def test_a_stage_makes_once_what_several_of_its_layers_read(spans: Any, remat: Remat) -> None:
    step = layered(remat)
    merged = step.merged(spans)
    assert crossing(merged, spans) == crossing(step, spans)
    for first, last in spans:
        graph = step.stage(first, last)
        autoshard.verify(graph)
        assert graph == merged.stage(first, last)
        made = [(op.phase, step.local.get(op.name, op.name)) for op in graph.operators]
        assert len(made) == len({*made})
        of_phase = {p: {op.kind for op in graph.operators if op.phase == p} for p in range(3)}
        has_blocks = "tanh" in of_phase[FORWARD]
        assert ("cos" in of_phase[FORWARD]) == has_blocks
        assert ("cos" in of_phase[BACKWARD]) == (has_blocks and remat != "none"), "it is not held"


def test_a_single_stage_is_the_step_without_copies() -> None:
    step, plain = layered(), layered(send_less=False)
    whole = [(0, step.n_layers - 1)]
    assert step.local
    assert step.merged(whole).step.graph == plain.step.graph
    assert step.stage(*whole[0]) == plain.stage(*whole[0])
    assert not any(is_local_copy(op.name) for op in step.merged(whole).step.graph.operators)


@pytest.mark.parametrize(
    ("remat", "schedule"), [("none", "1f1b"), ("cheap", "zb-h1"), ("all", "chimera")]
)
def test_random_plans_compute_the_single_device_step(remat: Remat, schedule: str) -> None:
    example, traced = masked(), masked().trace(4)
    meshes = MESHES[:2] if schedule == "chimera" else MESHES
    plan = random_plan(layered(remat), meshes, random.Random(0), schedule)
    copied = copied_as(layered(remat), plan)
    run = Runtime(
        traced.with_copies(copied.traced), copied.layered, plan, Cluster.preset("two-hosts")
    )
    ours = run(jax.tree.leaves(example.arguments))
    theirs = jax.tree.leaves(jax.jit(example.function)(*example.arguments))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


def test_a_plan_sends_no_mask_and_runs_as_planned_and_saved() -> None:
    example = masked()
    options: dict[str, Any] = {"cluster": HOST, "batch_argnums": (2,)}
    step = mw.parallelize(example.function, **options, stages=2, microbatches=4, schedule="1f1b")
    result = step(*example.arguments)
    plan = step.plan
    sent = {t.value for t in plan.transfers if t.phase in ("forward", "backward")}
    assert len(sent) == 2
    assert {p.operator for p in plan.stages[1].placements if is_local_copy(p.operator)}
    assert not {p.operator for p in plan.stages[0].placements if is_local_copy(p.operator)}
    again = mw.parallelize(example.function, **options, plan=Plan.from_json(plan.to_json()))
    for other in (again(*example.arguments), jax.jit(example.function)(*example.arguments)):
        for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert "collectives are those of the plan" in str(step.verify(*example.arguments))


def test_plans_without_copies_still_run() -> None:
    """Plans of version 0.2 send masks."""
    example, plain = masked(), layer(masked().trace(4).step, send_less=False, choose_saved=False)
    plan = random_plan(plain, MESHES[:2], random.Random(1))
    assert layer_as(masked().trace(4).step, plan) == plain
    step = mw.parallelize(
        example.function, cluster=Cluster.preset("two-hosts"), plan=plan, batch_argnums=(2,)
    )
    ours = jax.tree.leaves(step(*example.arguments))
    theirs = jax.tree.leaves(jax.jit(example.function)(*example.arguments))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


def in_half_precision() -> TrainingStep:
    """Blocks that read their input as it is, and in half precision."""

    def step(weights: Any, batch: Any) -> Any:
        def loss(weights: Any) -> Any:
            x = batch
            for up, down in weights:
                half = x.astype(jnp.bfloat16)
                hidden = jnp.tanh(half @ up.astype(jnp.bfloat16))
                x = x + (hidden @ down.astype(jnp.bfloat16)).astype(jnp.float32)
            return jnp.mean(x**2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - g, weights, gradients), value

    weights = [(jnp.ones((8, 8)), jnp.ones((8, 8)))] * 6
    arguments = (weights, jnp.ones((8, 8)))
    return trace(step, arguments, batch_argnums=(1,), microbatches=2).step


def test_a_gradient_is_sent_once_though_it_is_read_in_two_types() -> None:
    step = in_half_precision()
    lean, plain = layer(step), layer(step, send_less=False, choose_saved=False)
    for cut in range(2, lean.n_layers - 1):
        spans = [(0, cut - 1), (cut, lean.n_layers - 1)]
        assert len(crossing(lean, spans)) == 2
        assert len(crossing(plain, spans)) == 3
        plan = random_plan(plain, MESHES[:2], random.Random(cut))
        found = layer_as(step, plan)
        for stage in plan.stages:
            its = found.stage(stage.first_layer, stage.last_layer).operators
            assert {op.name for op in its} == {p.operator for p in stage.placements}


def test_a_pin_of_a_value_holds_for_all_its_copies() -> None:
    example = masked()
    name = next(
        op.outputs[0]
        for op in layered().step.graph.operators
        if op.kind == "cos" and op.name not in layered().local
    )
    plan = mw.plan_for(
        example.function,
        example.arguments,
        cluster=HOST,
        batch_argnums=(2,),
        microbatches=4,
        stages=2,
        schedule="1f1b",
        pin={name: "S0R"},
    ).plan
    placed = [
        p.results[0]
        for stage in plan.stages
        for p in stage.placements
        if layered().local.get(p.operator, p.operator).startswith("cos")
    ]
    assert [str(spec) for spec in placed] == ["S0R", "S0R"]


def test_what_takes_more_time_to_make_than_to_send_is_sent() -> None:
    def step(weights: Any, batch: Any) -> Any:
        def loss(weights: Any) -> Any:
            share = jnp.mean(jnp.exp(batch), axis=(1, 2))[:, None]
            x = batch[:, 0]
            for weight in weights:
                x = jnp.tanh(x @ weight) * share
            return jnp.mean(x**2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - g, weights, gradients), value

    def crosses(length: int) -> bool:
        weights = [jnp.ones((8, 8))] * 6
        shapes = jax.eval_shape(lambda: (weights, jnp.ones((8, length, 8))))
        found = layer(trace(step, shapes, batch_argnums=(1,), microbatches=4).step)
        return not any(original.startswith("reduce_sum") for original in found.local.values())

    assert [crosses(length) for length in (16, 1 << 20)] == [False, True]
