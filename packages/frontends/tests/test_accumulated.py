"""Loops that accumulate gradients over parts of the batch are computed at once, or in order."""

from collections.abc import Callable
from typing import Any

import frontends.jax as mw
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel import Cluster
from frontends.jax.base import _compat
from frontends.jax.base.accumulated import adds_gradients, together
from frontends.jax.testing import assert_same, run_in_microbatches
from frontends.jax.trace.trace import Capture, trace
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

PARTS = 4
X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
W = 0.5 * np.random.default_rng(1).normal(size=(2, 4, 4)).astype(np.float32)
ZERO = (jnp.float32(0), jnp.zeros_like(W))

Loss = Callable[..., Any]


def loss_of(w: Any, x: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ w[0]) @ w[1]) ** 2)


def cut(x: Any) -> Any:
    return x.reshape(PARTS, -1, *x.shape[1:])


def plus(total: Any, more: Any) -> Any:
    return jax.tree.map(jnp.add, total, more)


def updated(w: Any, total: Any) -> Any:
    loss, gradient = total
    return w - 0.1 * gradient / PARTS, loss / PARTS


def by_scan(w: Any, x: Any) -> Any:
    add = lambda total, part: (plus(total, jax.value_and_grad(loss_of)(w, part)), None)  # noqa: E731
    return updated(w, lax.scan(add, ZERO, cut(x))[0])


def by_index(w: Any, x: Any) -> Any:
    n = len(x) // PARTS

    def add(i: Any, total: Any) -> Any:
        part = lax.dynamic_slice_in_dim(x, i * n, n)
        return plus(total, jax.value_and_grad(loss_of)(w, part))

    return updated(w, lax.fori_loop(0, PARTS, add, ZERO))


def as_means(w: Any, x: Any) -> Any:
    def add(total: Any, part: Any) -> Any:
        found = jax.value_and_grad(loss_of)(w, part)
        return jax.tree.map(lambda a, b: a + b / PARTS, total, found), None

    (loss, gradient), _ = lax.scan(add, (0.0, jnp.zeros_like(w)), cut(x))
    return w - 0.1 * gradient, loss


def with_keys_in_order(w: Any, x: Any) -> Any:
    def add(carry: Any, part: Any) -> Any:
        total, key = carry
        key, own = jax.random.split(key)
        keep = jax.random.bernoulli(own, 0.7, part.shape)
        return (plus(total, jax.value_and_grad(loss_of)(w, part * keep)), key), None

    return updated(w, lax.scan(add, (ZERO, jax.random.key(3)), cut(x))[0][0])


def with_keys_given(w: Any, x: Any) -> Any:
    def add(total: Any, given_: Any) -> Any:
        part, key = given_
        noise = jax.random.normal(key, part.shape)
        return plus(total, jax.value_and_grad(loss_of)(w, part + noise)), None

    keys = jax.random.split(jax.random.key(3), PARTS)
    return updated(w, lax.scan(add, ZERO, (cut(x), keys))[0])


def with_losses_of_each(w: Any, x: Any) -> Any:
    def add(gradient: Any, part: Any) -> Any:
        loss, more = jax.value_and_grad(loss_of)(w, part)
        return gradient + more, loss

    gradient, losses = lax.scan(add, jnp.zeros_like(w), cut(x))
    return updated(w, (losses.sum(), gradient))


def with_counts(w: Any, x: Any) -> Any:
    """Metrics that are not differentiated, and a factor of each part."""

    def add(carry: Any, given_: Any) -> Any:
        total, n_large, n_parts = carry
        part, factor = given_
        found = jax.value_and_grad(lambda w, x: factor * loss_of(w, x))(w, part)
        return (plus(total, found), n_large + (part > 0.5).sum(), n_parts + 1), None

    factors = jnp.linspace(0.5, 2.0, PARTS)
    (total, n_large, n_parts), _ = lax.scan(add, (ZERO, 0, 0), (cut(x), factors))
    new, loss = updated(w, total)
    return new, loss + n_large / n_parts


def with_layers(w: Any, x: Any) -> Any:
    def deep(w: Any, x: Any) -> Any:
        layer = jax.checkpoint(lambda h, w: (h + jnp.tanh(h @ w), None))
        return jnp.mean(lax.scan(layer, x, w)[0] ** 2)

    add = lambda total, part: (plus(total, jax.value_and_grad(deep)(w, part)), None)  # noqa: E731
    return updated(w, lax.scan(add, ZERO, cut(x))[0])


def with_a_penalty_first(w: Any, x: Any) -> Any:
    first = jax.value_and_grad(lambda w: 0.1 * (w**2).sum())(w)
    add = lambda total, part: (plus(total, jax.value_and_grad(loss_of)(w, part)), None)  # noqa: E731
    return updated(w, lax.scan(add, first, cut(x))[0])


def with_interleaved_parts(w: Any, x: Any) -> Any:
    parts = x.reshape(-1, PARTS, *x.shape[1:]).swapaxes(0, 1)
    add = lambda total, part: (plus(total, jax.value_and_grad(loss_of)(w, part)), None)  # noqa: E731
    return updated(w, lax.scan(add, ZERO, parts)[0])


def jitted(w: Any, x: Any) -> Any:
    value = jax.jit(jax.value_and_grad(jax.jit(loss_of)))
    add = jax.jit(lambda total, part: (plus(total, value(w, part)), None))
    return updated(w, jax.jit(lambda x: lax.scan(add, ZERO, cut(x))[0])(x))


AT_ONCE = {
    "scan": by_scan,
    "index": by_index,
    "means": as_means,
    "keys in order": with_keys_in_order,
    "keys given": with_keys_given,
    "losses of each": with_losses_of_each,
    "counts": with_counts,
    "layers": with_layers,
    "penalty first": with_a_penalty_first,
    "interleaved parts": with_interleaved_parts,
    "jitted": jitted,
}


@pytest.mark.parametrize("microbatches", [1, 2, 4])
@pytest.mark.parametrize("name", AT_ONCE)
def test_parts_are_examples_like_others(name, microbatches):
    step = AT_ONCE[name]
    found = trace(step, (W, X), batch_argnums=(1,), microbatches=microbatches)
    assert_same(run_in_microbatches(found, (W, X)), step(W, X))
    products = [op for op in found.step.graph.operators if op.kind == "dot_general"]
    n_layers = 2 if name == "layers" else 1
    assert len(products) <= 5 * n_layers  # not as many for each part


def test_the_plan_runs_parts_as_microbatches_in_stages():
    cluster = Cluster.preset("two-hosts").resized(devices_per_host=2)
    for step in (by_scan, by_index):
        parallel = mw.parallelize(step, cluster=cluster, stages=2, microbatches=PARTS)
        assert_same(parallel(W, X), step(W, X))
        assert parallel.plan.microbatches == PARTS


def in_order(w: Any, x: Any) -> Any:
    """Each part updates the weights."""

    def update(w: Any, part: Any) -> Any:
        loss, gradient = jax.value_and_grad(loss_of)(w, part)
        return w - 0.1 * gradient, loss

    w, losses = lax.scan(update, w, cut(x))
    return w, losses.sum()


def with_statistics(w: Any, x: Any) -> Any:
    """An average over the parts, which later parts weigh more in."""

    def add(carry: Any, part: Any) -> Any:
        total, average = carry
        inner = lambda w, x: (loss_of(w, x), jnp.tanh(x @ w[0]).mean())  # noqa: E731
        (loss, mean), gradient = jax.value_and_grad(inner, has_aux=True)(w, part)
        return (plus(total, (loss, gradient)), 0.9 * average + 0.1 * mean), None

    (total, average), _ = lax.scan(add, (ZERO, 0.0), cut(x))
    new, loss = updated(w, total)
    return new, loss + average


def backwards(w: Any, x: Any) -> Any:
    add = lambda total, part: (plus(total, jax.value_and_grad(loss_of)(w, part)), None)  # noqa: E731
    return updated(w, lax.scan(add, ZERO, cut(x), reverse=True)[0])


def with_another_generator(w: Any, x: Any) -> Any:
    def add(total: Any, given_: Any) -> Any:
        part, key = given_
        keep = jax.random.bernoulli(key, 0.7, part.shape)
        return plus(total, jax.value_and_grad(loss_of)(w, part * keep)), None

    keys = jax.random.split(jax.random.key(3, impl="rbg"), PARTS)
    return updated(w, lax.scan(add, ZERO, (cut(x), keys))[0])


IN_ORDER = {
    "updates": in_order,
    "statistics": with_statistics,
    "backwards": backwards,
    "another generator": with_another_generator,
}


@pytest.mark.parametrize("name", IN_ORDER)
def test_other_loops_keep_their_order(name):
    step = IN_ORDER[name]
    found = trace(step, (W, X), batch_argnums=(1,), microbatches=1)
    assert_same(run_in_microbatches(found, (W, X)), step(W, X))
    products = [op for op in found.step.graph.operators if op.kind == "dot_general"]
    assert len(products) >= 5 * PARTS


def test_a_loop_over_chunks_of_a_loss_keeps_them_apart():
    """The loss is cut so that no more than one chunk of it is in memory at a time."""

    def chunked(w: Any, x: Any) -> Any:
        hidden = jnp.tanh(x @ w[0])

        @jax.checkpoint
        def one(total: Any, h: Any) -> Any:
            return total + jnp.sum((h @ w[1]) ** 2), None

        return lax.scan(one, 0.0, cut(hidden))[0]

    def step(w: Any, x: Any) -> Any:
        loss, gradient = jax.value_and_grad(jax.jit(chunked))(w, x)
        return w - 0.1 * gradient, loss

    found = Capture(step, (W, X), (1,)).at(1)
    products = [op for op in found.step.graph.operators if op.kind == "dot_general"]
    assert len(products) >= 3 * PARTS


@st.composite
def bodies(draw):
    """What a loop adds up, and what it makes in order, by name."""
    kinds = st.sampled_from(["gradient", "half of it", "loss", "large", "count", "key", "index"])
    return [*draw(st.lists(kinds, min_size=1, max_size=4)), "gradient"]


@settings(max_examples=settings().max_examples // 10)
@given(bodies(), st.integers(2, 5), st.booleans())
def test_all_iterations_at_once_are_those_in_turn(kinds, length, returns_losses):
    def add(carry: Any, given_: Any) -> Any:
        part, factor = given_
        new, scale = [], factor
        for kind, old in zip(kinds, carry, strict=True):
            if kind == "key":
                new.append(old * 7 + 1)
                scale = scale + jnp.sin(old)
            elif kind == "index":
                new.append(old + 2)
                scale = scale * (1 + old)
            else:
                new.append(old)
        loss, gradient = jax.value_and_grad(lambda w: scale * loss_of(w, part))(W)
        more = {
            "gradient": gradient,
            "half of it": gradient / 2,
            "loss": loss,
            "large": (part > 0).sum(),
            "count": 1,
        }
        new = [n + more[k] if k in more else n for k, n in zip(kinds, new, strict=True)]
        return tuple(new), loss if returns_losses else None

    first = {"gradient": W, "half of it": 0 * W, "key": jnp.float32(0.5), "loss": 0.0}
    carry = tuple(first.get(kind, 0) for kind in kinds)
    x = np.random.default_rng(length).normal(size=(length, 2, 4)).astype(np.float32)

    def run(x: Any) -> Any:
        return lax.scan(add, carry, (x, jnp.linspace(1, 2, length)))

    def at_once(equation: Any) -> Any:
        if equation.primitive.name != "scan":
            return None
        assert adds_gradients(equation)
        flat = _compat.with_flat_bodies(equation, lambda equation: None)
        made = together(flat.jaxpr.eqns[0], equation.invars)
        assert made is not None
        return made, True

    closed = _compat.inline_calls(jax.make_jaxpr(run)(x), at_once)
    assert not any(equation.primitive.name == "scan" for equation in closed.jaxpr.eqns)
    found = _compat.as_function(closed)(x)
    for one, other in zip(found, jax.tree.leaves(run(x)), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-5)
