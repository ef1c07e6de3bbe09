"""Conditional updates: cheap ones select what was computed, where each piece of the state is."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from costmodel import Cluster
from frontends.jax import parallelize
from frontends.jax.testing import assert_same, run_in_microbatches
from frontends.jax.trace.trace import trace
from frontends.search.held import homes_of
from jax import lax

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
N, WIDTH = 4, 64
BATCH = np.random.default_rng(0).normal(size=(8, WIDTH)).astype(np.float32)
ADAM = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2, eps=1e-2))
OPTIMIZERS: dict[str, Any] = {
    "every second step": optax.MultiSteps(ADAM, 2),
    "if finite": optax.apply_if_finite(ADAM, 3),
}


def loss_of(layers: Any, batch: Any) -> Any:
    def layer(x: Any, p: Any) -> tuple[Any, None]:
        return x + jnp.tanh(x @ p["w"] + p["b"]), None

    x = batch
    if isinstance(layers, dict):
        x, _ = lax.scan(layer, x, layers)
    else:
        for p in layers:
            x, _ = layer(x, p)
    return jnp.mean(x**2)


def first_layers(*, stacked: bool) -> Any:
    layers = {
        "w": jax.random.normal(jax.random.key(0), (N, WIDTH, WIDTH)) / 8,
        "b": jnp.zeros((N, WIDTH)),
    }
    return layers if stacked else [jax.tree.map(lambda a, i=i: a[i], layers) for i in range(N)]


def operators(traced: Any) -> Counter[str]:
    return Counter(op.kind for op in traced.step.graph.operators)


@pytest.mark.parametrize("stacked", [False, True], ids=["written out", "stacked"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_that_is_updated_on_a_condition_stays_in_its_stage(name: str, stacked: bool) -> None:
    optimizer = OPTIMIZERS[name]

    def step(layers: Any, opt_state: Any, batch: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(layers, batch)
        updates, opt_state = optimizer.update(gradients, opt_state, layers)
        return optax.apply_updates(layers, updates), opt_state, loss

    ours = parallelize(step, cluster=CLUSTER, stages=2, microbatches=2, schedule="1f1b")
    layers = first_layers(stacked=stacked)
    mine = theirs = (layers, optimizer.init(layers))
    bad = np.where(np.arange(8)[:, None] == 3, np.nan, BATCH)
    for batch in (BATCH, BATCH, bad if name == "if finite" else BATCH, BATCH):
        *mine, found = ours(*mine, batch)
        *theirs, expected = jax.jit(step)(*theirs, batch)
        assert_same(jax.tree.leaves(mine), theirs, least=1e-2)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert "cond" not in operators(ours.planned.trace)
    where: dict[str, set[tuple[int, ...]]] = {}
    """By layer, the devices of the stages that keep its weights and what is kept of them."""
    for path, homes in homes_of(ours.plan).items():
        if layer := re.search(r"\['w'\]\[\d\]$|\[\d\]\['w'\]$", path):
            where.setdefault(layer[0], set()).update(home.devices for home in homes)
    assert len(where) == N
    assert all(len(devices) == 1 for devices in where.values())
    assert len(set().union(*where.values())) == 2


KINDS: dict[str, Callable[..., Any]] = {
    "cond": lambda i, x, w: lax.cond(i % 2 == 0, lambda x: jnp.tanh(x @ w), lambda x: x @ w, x),
    "switch": lambda i, x, w: lax.switch(i, [jnp.sin, jnp.tanh, jnp.tanh], x @ w),
    "nested": lambda i, x, w: lax.cond(
        i > 0,
        lambda x: lax.cond(i > 2, lambda x: x, lambda x: jnp.tanh(x @ w), x),
        lambda x: lax.scan(lambda x, _: (x @ w, None), x, None, 2)[0],
        x,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_of_which_the_kind_is_known_has_only_its_branch(kind: str) -> None:
    def step(layers: Any, batch: Any) -> Any:
        def loss_of(layers: Any) -> Any:
            def layer(x: Any, of_layer: Any) -> tuple[Any, None]:
                number, p = of_layer
                return x + KINDS[kind](number, x, p["w"]) + p["b"], None

            x, _ = lax.scan(jax.checkpoint(layer), batch, (jnp.arange(N), layers))
            return jnp.mean(x**2)

        loss, gradients = jax.value_and_grad(loss_of)(layers)
        return jax.tree.map(lambda p, g: p - 0.1 * g, layers, gradients), loss

    arguments = first_layers(stacked=True), BATCH
    traced = trace(step, arguments, batch_argnums=(1,), microbatches=2)
    assert operators(traced)["cond"] == 0
    assert_same(run_in_microbatches(traced, arguments), jax.jit(step)(*arguments))
    ours = parallelize(step, cluster=CLUSTER, stages=2, microbatches=2)
    assert_same(jax.tree.leaves(ours(*arguments)), jax.jit(step)(*arguments))


def test_a_condition_that_is_an_argument_stays() -> None:
    def step(w: Any, flag: Any, batch: Any) -> Any:
        def loss_of(w: Any) -> Any:
            return jnp.mean(lax.cond(flag, jnp.tanh, jnp.sin, w) ** 2) * jnp.mean(batch**2)

        loss, gradient = jax.value_and_grad(loss_of)(w)
        return w - gradient, loss

    arguments = jnp.eye(WIDTH), jnp.asarray(True), BATCH
    traced = trace(step, arguments, batch_argnums=(2,), microbatches=1)
    assert operators(traced)["cond"] > 0
    assert_same(run_in_microbatches(traced, arguments), jax.jit(step)(*arguments))


def test_a_branch_that_costs_much_is_computed_only_if_it_is_taken() -> None:
    def step(w: Any, batch: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((batch @ w) ** 2))(w)
        change = lax.cond(loss > 1, lambda g: jnp.linalg.matrix_power(g, 8), jnp.negative, gradient)
        return w + change, loss

    traced = trace(step, (jnp.eye(WIDTH), BATCH), batch_argnums=(1,), microbatches=2)
    assert operators(traced)["cond"] == 1


@pytest.mark.parametrize("number", [-1, 0, 1, 2, 5])
def test_the_branch_of_a_number_is_that_of_switch(number: int) -> None:
    def step(w: Any, which: Any, batch: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((batch @ w) ** 2))(w)

        def cautious(w: Any, gradient: Any) -> Any:
            return lax.cond(which > 0, lambda: w - jnp.sign(gradient), lambda: w), gradient

        branches = (lambda w, g: (w, g), lambda w, g: (w - g, 2 * g), cautious)
        w, told = lax.switch(which, branches, w, gradient)
        return w, told, loss

    arguments = jnp.eye(WIDTH), jnp.asarray(number), BATCH
    traced = trace(step, arguments, batch_argnums=(2,), microbatches=2)
    assert "select_n" in operators(traced)
    ours = run_in_microbatches(traced, arguments)
    assert_same(ours, jax.jit(step)(*arguments))
