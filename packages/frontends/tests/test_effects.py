"""Prints and callbacks of a step see what they see under `jit`, once a step."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel import Cluster
from frontends.errors import RunError, UnsupportedStepError
from frontends.jax import parallelize
from frontends.jax.testing import assert_same
from jax.experimental import io_callback

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
RNG = np.random.default_rng(0)
WEIGHTS = [RNG.normal(size=(8, 8), scale=0.5).astype(np.float32) for _ in range(4)]
X = RNG.normal(size=(8, 8)).astype(np.float32)


def network(weights: Any, x: Any) -> Any:
    for w in weights:
        x = jnp.tanh(x @ w)
    return x


@pytest.mark.parametrize(
    "options",
    [{"strategy": "equal_layers", "microbatches": 2, "n_layers": 2}, {"strategy": "zero"}],
    ids=["pipeline", "zero"],
)
def test_callbacks_see_whole_arrays_once_a_step_in_order(
    options: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[Any, ...]] = []

    def see(*values: Any) -> None:
        seen.append(tuple(map(np.array, values)))

    def step(weights: Any, count: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            y = network(weights, x)
            jax.debug.callback(see, y, jnp.sqrt(jnp.mean(y**2)), ordered=True)
            return jnp.mean(y**2)

        value, gradient = jax.jit(jax.value_and_grad(loss))(weights)
        jax.debug.callback(see, gradient[0][0], value, 1.5, ordered=True)
        jax.debug.print("count {} of {n}", count, n=x.shape[0], ordered=True)
        io_callback(see, None, count, ordered=True)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient), count + 1

    def run(step: Any) -> list[tuple[Any, ...]]:
        state = WEIGHTS, 0
        for _ in range(2):
            state = step(*state, X)
        jax.effects_barrier()
        found = [*seen]
        seen.clear()
        return found

    ours = run(parallelize(step, cluster=CLUSTER, **options))
    printed = capfd.readouterr().out
    assert printed.splitlines() == ["count 0 of 8", "count 1 of 8"]
    theirs = run(jax.jit(step))
    assert [len(values) for values in ours] == 2 * [2, 3, 1]  # those of two kinds have no order
    for values, expected in zip(sorted(ours, key=len), sorted(theirs, key=len), strict=True):
        assert_same(values, expected)


def test_rejects_callbacks_in_branches_and_those_that_are_read() -> None:
    def branches(w: Any, x: Any) -> Any:
        jax.lax.cond(x[0, 0] > 0, lambda: jax.debug.print("{}", x), lambda: None)
        return jax.grad(lambda w: jnp.mean(x @ w))(w)

    def reads(w: Any, x: Any) -> Any:
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        return jax.grad(lambda w: jnp.mean(x @ w))(w) * io_callback(np.sum, shape, x)

    for step in (branches, reads):
        with pytest.raises(UnsupportedStepError, match=r"test_effects.py.*: return what they are"):
            parallelize(step, cluster=CLUSTER)(WEIGHTS[0], X)


def test_a_callback_that_raises_is_named() -> None:
    def step(w: Any, x: Any) -> Any:
        jax.debug.callback(lambda x: 1 // 0, x)
        return jax.grad(lambda w: jnp.mean(x @ w))(w)

    message = r"has run, and its debug_callback, at .*test_effects.py.*ZeroDivisionError: integer"
    with pytest.raises(RunError, match=message):
        parallelize(step, cluster=CLUSTER)(WEIGHTS[0], X)
