"""Random numbers of a step are those of one device, however its batch is cut."""

from collections.abc import Callable
from typing import Any

import autoshard
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from frontends.jax.base import _compat
from frontends.jax.testing import assert_same, run_in_microbatches, sgd
from frontends.jax.trace.prng import positions
from frontends.jax.trace.trace import Trace, trace

X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)


def traced(function: Callable[..., Any], *arguments: Any, microbatches: int = 2) -> Trace:
    return trace(function, arguments, batch_argnums=(-1,), microbatches=microbatches)


def test_a_key_may_be_wrapped_inside_the_step() -> None:
    def step(w: Any, data: Any, x: Any) -> Any:
        key = jax.random.wrap_key_data(data)
        noise = jax.random.normal(key, w.shape)
        key, _ = jax.random.split(key)
        new, loss = sgd(lambda w, x: jnp.sum(jnp.tanh(x @ w)))(w + noise, x)
        return new, jax.random.key_data(key), loss

    data = jax.random.key_data(jax.random.key(0))
    found = traced(step, W, data, X)
    assert all(value.dtype != "key<fry>" for value in found.step.graph.values)
    assert_same(run_in_microbatches(found, (W, data, X)), jax.jit(step)(W, data, X))


def dropped(draw: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A step with a mask that is drawn from a key."""

    def step(w: Any, key: Any, x: Any) -> Any:
        new, other = jax.random.split(key)
        loss = lambda w: jnp.sum(jnp.tanh(draw(other, x) * (x @ w)) ** 2)  # noqa: E731
        value, gradient = jax.value_and_grad(loss)(w)
        return w - gradient, new, value

    return step


DRAWS: dict[str, Callable[[Any, Any], Any]] = {
    "bernoulli": lambda key, x: jax.random.bernoulli(key, 0.5, x.shape),
    "uniform": lambda key, x: jax.random.uniform(key, (x.shape[0], 1)),
    "normal": lambda key, x: jax.random.normal(jax.random.fold_in(key, 3), x.shape),
    "integers": lambda key, x: jax.random.randint(key, x.shape, 0, 5),
    "each its own key": lambda key, x: jax.vmap(lambda k: jax.random.normal(k, (4,)))(
        jax.random.split(key, len(x))
    ),
    "bytes": lambda key, x: jax.random.bits(key, x.shape, jnp.uint8) / 256,
    "of the weights' shape": lambda key, x: jax.random.normal(key, (4,)),
}


@pytest.mark.parametrize("form", ["typed", "raw", "rbg"])
@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_are_those_of_one_device(name: str, form: str) -> None:
    step = dropped(DRAWS[name])
    key = (
        jax.random.PRNGKey(1)
        if form == "raw"
        else jax.random.key(1, impl="rbg" if form == "rbg" else None)
    )
    found = traced(step, W, key, X, microbatches=4)
    autoshard.verify(found.step.graph)
    ours = run_in_microbatches(found, (W, key, X))
    theirs = jax.jit(step)(W, key, X)
    assert ours[1].dtype == theirs[1].dtype
    raw = lambda k: k if form == "raw" else jax.random.key_data(k)  # noqa: E731
    np.testing.assert_array_equal(raw(ours[1]), raw(theirs[1]))
    assert_same([ours[0], ours[2]], (theirs[0], theirs[2]))


def test_keys_are_state_like_any_other() -> None:
    found = traced(dropped(DRAWS["bernoulli"]), W, jax.random.key(0), X)
    assert {o.alias for o in found.step.graph.outputs} == {"w", "key", None}
    assert {v.dtype for v in found.step.graph.values} <= {"float32", "uint32", "bool"}


def test_positions_of_random_numbers_may_need_two_words() -> None:
    shape = (3, 2**16, 2**15)  # more than 2**32
    closed = _compat.inline_calls(jax.make_jaxpr(lambda: positions(shape))())
    rows = [np.asarray(c) for c in closed.consts]
    exact = np.arange(3, dtype=np.uint64) * np.uint64(2**31)
    np.testing.assert_array_equal((rows[0].astype(np.uint64) << np.uint64(32)) + rows[1], exact)
