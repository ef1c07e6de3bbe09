"""Problems in linear algebra, one for each example, run in stages and microbatches."""

from collections.abc import Callable
from typing import Any

import frontends.jax as mw
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel import Cluster
from jax import lax

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
KEYS = jax.random.split(jax.random.key(0), 4)
PARAMS = [0.3 * jax.random.normal(key, (16, 16)) for key in KEYS[:2]]
BATCH = {"x": jax.random.normal(KEYS[2], (8, 16)), "y": jax.random.normal(KEYS[3], (8, 4))}


def rows(params: Any, batch: Any) -> Any:
    return jnp.tanh(batch["x"] @ params[0]) @ params[1]


def matrices(params: Any, batch: Any) -> Any:
    """One for each example, positive definite."""
    root = rows(params, batch).reshape(-1, 4, 4)
    return jnp.einsum("bij,bkj->bik", root, root) + jnp.eye(4)


LOSSES: dict[str, Callable[..., Any]] = {
    "solve": lambda p, b: jnp.linalg.solve(matrices(p, b), b["y"][..., None]) ** 2,
    "inverse and determinant": lambda p, b: (
        jnp.linalg.inv(matrices(p, b)) * jnp.linalg.slogdet(matrices(p, b))[1][:, None, None]
    ),
    "qr": lambda p, b: jnp.linalg.qr(matrices(p, b))[1] ** 2,
    "interpolation": lambda p, b: rows(p, b) * jnp.interp(b["x"], jnp.arange(3.0), jnp.arange(3.0)),
    "barrier": lambda p, b: lax.optimization_barrier((rows(p, b), b["x"]))[0] ** 2,
}


@pytest.mark.parametrize("name", LOSSES)
def test_many_problems_are_split(name: str) -> None:
    def step(params: Any, batch: Any) -> Any:
        loss, gradients = jax.value_and_grad(lambda p: LOSSES[name](p, batch).mean())(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    parallel = mw.parallelize(step, cluster=CLUSTER, stages=2, microbatches=2)
    for ours, theirs in zip(
        jax.tree.leaves(parallel(PARAMS, BATCH)),
        jax.tree.leaves(jax.jit(step)(PARAMS, BATCH)),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert parallel.plan.unsharded == ()
