"""Losses that compare examples run in microbatches: a first pass computes the features of all."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import frontends.jax as mw
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from costmodel import Cluster
from frontends.answer.plan import Plan
from frontends.errors import AccumulationError, VerificationError
from frontends.jax.testing import assert_same, run_in_microbatches, sgd
from frontends.jax.trace.trace import trace
from jax import lax

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
N, DIM, WIDTH = 16, 6, 8
RNG = np.random.default_rng(0)
BATCH = {
    "x": RNG.normal(size=(N, DIM)).astype(np.float32),
    "y": RNG.normal(size=(N, DIM)).astype(np.float32),
    "label": RNG.integers(0, 3, N),
}


def weights() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    shapes = (DIM, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH)
    towers = {
        name: [rng.normal(size=s, scale=s[0] ** -0.5).astype(np.float32) for s in shapes]
        for name in ("x", "y")
    }
    return {**towers, "scale": np.float32(1.0), "bias": np.float32(-1.0)}


def tower(ws: Any, x: Any) -> Any:
    h = jnp.tanh(x @ ws[0])
    z = (h + jnp.tanh(h @ ws[1])) @ ws[2]
    return z / jnp.linalg.norm(z, axis=-1, keepdims=True)


def clip(w: Any, batch: Any) -> Any:
    """Radford et al., arXiv 2103.00020, figure 3."""
    logits = tower(w["x"], batch["x"]) @ tower(w["y"], batch["y"]).T * jnp.exp(w["scale"])
    own = jnp.arange(len(logits))
    entropy = optax.softmax_cross_entropy_with_integer_labels
    return (entropy(logits, own).mean() + entropy(logits.T, own).mean()) / 2


def siglip(w: Any, batch: Any) -> Any:
    """Zhai et al., arXiv 2303.15343, algorithm 1."""
    logits = tower(w["x"], batch["x"]) @ tower(w["y"], batch["y"]).T * jnp.exp(w["scale"])
    signs = 2 * jnp.eye(len(logits)) - 1
    return -jnp.mean(jnp.sum(jax.nn.log_sigmoid(signs * (logits + w["bias"])), -1))


def simclr(w: Any, batch: Any) -> Any:
    """Chen et al., arXiv 2002.05709, algorithm 1: two views go through one tower."""
    z = tower(w["x"], jnp.concatenate([batch["x"], batch["y"]]))
    own = jnp.roll(jnp.arange(2 * N), N)
    similar = z @ z.T / 0.2 - 1e9 * jnp.eye(2 * N)
    return optax.softmax_cross_entropy_with_integer_labels(similar, own).mean()


def hardest_triplets(w: Any, batch: Any) -> Any:
    """Hermans et al., arXiv 1703.07737, equation 5."""
    z, label = tower(w["x"], batch["x"]), batch["label"]
    apart = jnp.sum((z[:, None] - z[None]) ** 2, -1)
    is_same = label[:, None] == label[None]
    far, near = (jnp.where(is_same, apart, -1.0).max(1), jnp.where(is_same, 9.0, apart).min(1))
    return jnp.mean(jax.nn.relu(far - near + 0.2))


def barlow_twins(w: Any, batch: Any) -> Any:
    """Zbontar et al., arXiv 2103.03230, algorithm 1: batch norm of the last layer."""
    a, b = (tower(w["x"], batch[name]) for name in ("x", "y"))
    a, b = ((z - z.mean(0)) / (z.std(0) + 1e-3) for z in (a, b))
    return jnp.sum((a.T @ b / N - jnp.eye(WIDTH)) ** 2)


def with_more(w: Any, batch: Any) -> Any:
    """A contrastive loss is one of several."""
    penalty = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(w))
    return clip(w, batch) + 0.1 * jnp.mean(tower(w["x"], batch["x"])[:, 0] ** 2) + 1e-3 * penalty


def advantages(w: Any, batch: Any) -> Any:
    """They are normalized over the batch, as in PPO; only one of the towers makes them."""
    value = tower(w["y"], batch["y"]).sum(1)
    apart = batch["x"][:, 0] - value
    apart = lax.stop_gradient((apart - apart.mean()) / (apart.std() + 1e-8))
    chosen = jax.nn.log_softmax(tower(w["x"], batch["x"]))[:, 0]
    return jnp.mean(value**2) - jnp.mean(apart * chosen)


LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "CLIP": clip,
    "SigLIP": siglip,
    "SimCLR": simclr,
    "hardest triplets": hardest_triplets,
    "Barlow Twins": barlow_twins,
    "several": with_more,
    "advantages": advantages,
    "the worst example": lambda w, batch: jnp.max(jnp.sum(tower(w["x"], batch["x"]) ** 3, 1)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_that_compare_examples_run_in_microbatches(name: str) -> None:
    step = sgd(LOSSES[name])
    found = trace(step, (weights(), BATCH), batch_argnums=(1,), microbatches=4)
    assert found.first_pass is not None
    sizes = [np.prod(made.shape) for made in found.first_pass.makes]
    assert max(sizes) <= 2 * N * WIDTH, "similarities of pairs are not passed on"
    expected = jax.jit(step)(weights(), BATCH)
    assert_same(run_in_microbatches(found, (weights(), BATCH)), expected)


@pytest.mark.parametrize(
    ("loss", "stages"), [(clip, 1), (clip, 2), (advantages, 2)], ids=["1", "2", "of one stage"]
)
def test_both_passes_run_by_a_plan(loss: Callable[[Any, Any], Any], stages: int) -> None:
    step = sgd(loss)
    parallel = mw.parallelize(step, cluster=CLUSTER, stages=stages, microbatches=2)
    expected = ours = weights(), None
    for _ in range(3):
        ours, expected = parallel(ours[0], BATCH), jax.jit(step)(expected[0], BATCH)
    assert_same(jax.tree.leaves(ours), expected)
    plan = parallel.plan
    assert 0 < plan.first_pass_s < plan.step_s
    assert "first pass" in str(plan)
    assert len(plan.stages) == stages
    assert parallel.verify(weights(), BATCH).n_steps == 2

    read = Plan.from_json(plan.to_json())
    assert read == plan
    again = mw.parallelize(step, cluster=CLUSTER, plan=read)
    assert_same(jax.tree.leaves(again(weights(), BATCH)), jax.jit(step)(weights(), BATCH))
    assert plan.verify()
    with pytest.raises(VerificationError, match="its parts take"):
        replace(read, first_pass_s=2 * read.first_pass_s).verify()


def test_one_pass_is_taken_where_it_is_faster() -> None:
    planned = mw.plan_for(sgd(clip), (weights(), BATCH), CLUSTER)
    alone = mw.plan_for(sgd(clip), (weights(), BATCH), CLUSTER, microbatches=1)
    assert planned.plan.step_s <= alone.plan.step_s
    assert planned.first_pass is None or planned.plan.microbatches > 1


def test_layers_above_what_mixes_examples_are_refused() -> None:
    def normalised(w: Any, batch: Any) -> Any:
        h = batch["x"] @ w["x"][0]
        h = (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-5)
        return jnp.mean((jnp.tanh(h) @ w["x"][1]) ** 2)

    with pytest.raises(AccumulationError, match="single examples with a sum over all"):
        trace(sgd(normalised), (weights(), BATCH), batch_argnums=(1,), microbatches=2)
