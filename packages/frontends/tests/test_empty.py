"""Values without elements: XLA lays them anywhere, and they must be where the plan has them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel import Cluster
from frontends.jax import parallelize
from frontends.jax.testing import assert_same, sgd
from jax import lax

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
RNG = np.random.default_rng(0)


def numbers(*shape: int) -> Any:
    return RNG.normal(size=shape, scale=0.3).astype(np.float32)


@pytest.mark.parametrize(("microbatches", "length"), [(1, 4), (2, 7)])
def test_an_associative_scan_in_stages(microbatches: int, length: int) -> None:
    def loss(layers: Any, batch: Any) -> Any:
        x = batch["x"]
        for layer in layers:
            gates = jax.nn.sigmoid(x @ layer["gate"]), x @ layer["in"]
            _, states = lax.associative_scan(
                lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), gates, axis=1
            )
            x = x + jnp.tanh(states)
        return jnp.mean((x - batch["y"]) ** 2)

    layers = [{"gate": numbers(4, 4), "in": numbers(4, 4)} for _ in range(4)]
    batch = {"x": numbers(8, length, 4), "y": numbers(8, length, 4)}
    step = sgd(loss)
    ours = parallelize(
        step, cluster=CLUSTER, microbatches=microbatches, strategy="equal_layers", n_layers=4
    )
    mine = theirs = layers
    for _ in range(2):
        mine, value = ours(mine, batch)
        theirs, expected = jax.jit(step)(theirs, batch)
        assert_same(jax.tree.leaves((mine, value)), (theirs, expected))


@pytest.mark.parametrize("strategy", ["equal_layers", "zero"])
def test_state_and_batch_without_elements(strategy: str) -> None:
    def loss(w: Any, batch: Any) -> Any:
        x = jnp.concatenate([batch["x"], batch["none"]], 1)
        for layer in w["layers"]:
            x = jnp.tanh(x @ layer) + w["empty"].sum(0)
        return jnp.mean(x**2) + batch["none"].sum()

    def step(state: Any, batch: Any) -> Any:
        w, seen = state
        w, value = sgd(loss)(w, batch)
        return (w, seen + batch["none"].sum(0)), value, w["empty"] * 2

    w = {"layers": [numbers(4, 4) for _ in range(4)], "empty": numbers(0, 4)}
    batch = {"x": numbers(8, 4), "none": numbers(8, 0)}
    ours = parallelize(step, cluster=CLUSTER, microbatches=2, strategy=strategy, donate=True)
    mine, theirs = jax.tree.map(jnp.array, (w, numbers(0))), (w, numbers(0))
    for rows in (8, 8, 3):
        some = jax.tree.map(lambda x, rows=rows: x[:rows], batch)
        mine, *found = ours(mine, some)
        theirs, *expected = jax.jit(step)(theirs, some)
        assert_same(jax.tree.leaves((mine, found)), (theirs, expected))
        assert jax.tree.map(jnp.shape, mine) == jax.tree.map(jnp.shape, theirs)
