"""A scan over layers is the program that a loop of Python makes; longer ones stay loops."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from frontends.jax.base.loops import MOST_EQUATIONS, MOST_ITERATIONS, n_equations, unrolled
from frontends.jax.testing import assert_same, run_in_microbatches, sgd
from frontends.jax.trace.trace import Trace, trace
from frontends.layers.layers import layer

N_LAYERS = 3
X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(N_LAYERS, 4, 4)).astype(np.float32)
KEY = jax.random.key_data(jax.random.key(3))


def scanned(x: Any, w: Any, **options: Any) -> Any:
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), x.sum(1)), x, w, **options)


def with_keys(x: Any, w: Any, keys: Any) -> Any:
    def layer(x: Any, of: Any) -> Any:
        w, key = of
        return jnp.tanh(x @ w) * jax.random.bernoulli(key, 0.5, x.shape), None

    return jax.lax.scan(layer, x, (w, keys))[0]


def nested(x: Any, w: Any) -> Any:
    def layer(x: Any, w: Any) -> Any:
        return jax.lax.scan(lambda x, row: (x + jnp.sin(x * row), None), x @ w, w)

    return jax.lax.scan(layer, x, w)[0]


LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "layers": lambda w, x: jnp.sum(scanned(x, w)[0] ** 2),
    "results of each layer": lambda w, x: jnp.mean(scanned(x, w)[1] ** 2),
    "backwards": lambda w, x: jnp.sum(scanned(x, w, reverse=True)[1] ** 3),
    "unrolled by two": lambda w, x: jnp.sum(scanned(x, w, unroll=2)[0] ** 2),
    "nested": lambda w, x: jnp.sum(nested(x, w)),
    "recomputed": lambda w, x: jnp.sum(
        jax.lax.scan(jax.checkpoint(lambda x, w: (jnp.sin(jnp.tanh(x @ w)), None)), x, w)[0]
    ),
    "nothing but a count": lambda w, x: jnp.sum(
        jax.lax.fori_loop(0, 3, lambda i, x: jnp.sin(x @ w[0]) + i, x)
    ),
    "raw keys": lambda w, x: jnp.sum(with_keys(x, w, jax.random.split(KEY, N_LAYERS))),
    "typed keys": lambda w, x: jnp.sum(
        with_keys(x, w, jax.random.split(jax.random.wrap_key_data(KEY), N_LAYERS))
    ),
}


def traced(function: Callable[..., Any], microbatches: int = 2, w: Any = W) -> Trace:
    return trace(function, (w, X), batch_argnums=(1,), microbatches=microbatches)


def kinds(found: Trace) -> Counter[str]:
    return Counter(op.kind for op in found.step.graph.operators)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loop_over_layers_computes_the_same_in_microbatches(name: str) -> None:
    step = sgd(LOSSES[name])
    found = traced(step)
    assert kinds(found)["scan"] == 0
    assert_same(run_in_microbatches(found, (W, X)), jax.jit(step)(W, X))


def test_it_is_the_program_of_a_python_loop_but_for_the_stack_of_weights() -> None:
    def looped(w: Any, x: Any) -> Any:
        for i in range(N_LAYERS):
            x = jnp.tanh(x @ w[i])
        return jnp.sum(x**2)

    heavy = ("dot_general", "tanh", "mul", "transpose")
    found, expected = kinds(traced(sgd(LOSSES["layers"]))), kinds(traced(sgd(looped)))
    assert [found[kind] for kind in heavy] == [expected[kind] for kind in heavy]
    assert found["concatenate"] == 1  # of the weights' gradients
    assert found["slice"] == N_LAYERS + N_LAYERS - 1  # no gradient is wanted of the first input


def test_what_forward_stacks_for_backward_is_handed_on_as_it_is() -> None:
    found = traced(sgd(LOSSES["layers"]))
    stacks = [op for op in found.step.graph.operators if op.kind == "concatenate"]
    assert [found.step.graph.value(op.outputs[0]).shape for op in stacks] == [W.shape]


def test_gradients_of_stacked_weights_are_stacked_once_a_step() -> None:
    found = layer(traced(sgd(LOSSES["layers"])).step, N_LAYERS)
    sent = list(found.exchanges(tuple((k, k) for k in range(N_LAYERS))))
    shapes = {
        phase: {found.step.graph.value(name).shape for name, of, _, _ in sent if of == phase}
        for phase in ("state", "forward", "backward")
    }
    assert shapes["state"] == {W.shape}  # a copy for each stage, once a step
    assert shapes["forward"] == shapes["backward"] == {(4, 4)}  # half of the batch


@pytest.mark.parametrize("length", [MOST_ITERATIONS + 1, 0])
def test_a_loop_over_time_stays_a_loop(length: int) -> None:
    w = np.ones((length, 4, 4), np.float32) / 4
    step = sgd(LOSSES["layers"])
    found = traced(step, w=w)
    assert kinds(found)["scan"] == 2
    assert_same(run_in_microbatches(found, (w, X)), jax.jit(step)(w, X))


def test_a_loop_of_too_many_equations_stays_whole() -> None:
    def layer(x: Any, w: Any) -> Any:
        inner = lambda x, _: (jnp.sin(x) * 2, None)  # noqa: E731
        for _ in range(10):
            x, _ = jax.lax.scan(inner, x, None, length=MOST_ITERATIONS)
        return x, None

    closed = jax.make_jaxpr(lambda x: jax.lax.scan(layer, x, None, length=MOST_ITERATIONS))(X)
    (loop,) = closed.jaxpr.eqns
    assert n_equations(closed.jaxpr) == MOST_ITERATIONS**2 * 10 * 2 > MOST_EQUATIONS
    assert unrolled(loop) is None
    assert unrolled(loop.params["jaxpr"].jaxpr.eqns[0]) is not None
