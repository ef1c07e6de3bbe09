"""A GPT planned on random clusters of unlike hosts, and on each part of them with equal hosts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from costmodel import Cluster
from frontends import NoPlanError
from frontends.answer.plan import Plan
from frontends.jax import plan_for
from frontends.models import gpt
from frontends.price.device_pool import DevicePool
from frontends.search.equal_parts import equal_parts_of

from unlike.clusters import alone, cluster_of, text_of

N_CLUSTERS = 40
CONFIG = gpt.GPTConfig(
    n_layers=8, d_model=1024, n_heads=16, sequence=1024, vocabulary=32000, dtype="bfloat16"
)
BATCH, MICROBATCHES = 64, 8


@dataclass(frozen=True, slots=True)
class Row:
    """One cluster."""

    seed: int
    hosts: str
    """Its hosts in words."""

    step_s: float | None
    """The step of the plan on all of it; None if nothing fits."""

    alone_s: float | None
    """The fastest step of equal hosts alone, each planned as a cluster of its own."""

    alone_on: str
    """These hosts in words."""

    bound_s: float
    """Lower bound of any plan."""

    stages: str
    """The stages of the plan, in words."""


def rows(n_clusters: int = N_CLUSTERS) -> Iterator[Row]:
    """Plan on the first of the random clusters."""
    yield from map(row_of, range(n_clusters))


def row_of(seed: int) -> Row:
    """Plan on a random cluster, and on its equal hosts alone."""
    cluster = cluster_of(seed)
    plan = _plan(cluster)
    others: list[tuple[float, str]] = []
    for pool in equal_parts_of(DevicePool(cluster)):
        part = alone(cluster, pool.device_ids)
        found = _plan(part)
        if found is not None:
            others.append((found.step_s, text_of(part)))
    alone_s, alone_on = min(others, default=(None, ""))
    return Row(
        seed,
        text_of(cluster),
        None if plan is None else plan.step_s,
        alone_s,
        alone_on,
        0.0 if plan is None else plan.lower_bound_s,
        "" if plan is None else _stages(plan, cluster),
    )


def _plan(cluster: Cluster) -> Plan | None:
    optimizer = gpt.make_optimizer(1e-3, 100)
    params = jax.eval_shape(lambda: gpt.init(jax.random.key(0), CONFIG))
    tokens = jax.ShapeDtypeStruct((BATCH, CONFIG.sequence), jnp.int32)
    arguments = (params, jax.eval_shape(optimizer.init, params), (tokens, tokens))
    with suppress(NoPlanError):
        return plan_for(
            gpt.make_train_step(CONFIG, optimizer),
            arguments,
            cluster,
            batch_argnums=(2,),
            microbatches=MICROBATCHES,
            advise=False,
        ).plan
    return None


def _stages(plan: Plan, cluster: Cluster) -> str:
    """Layers and devices of each stage: `6 on 4 A100`."""
    return ", ".join(
        f"{stage.last_layer - stage.first_layer + 1} on {stage.mesh.size} "
        f"{cluster.slowest(stage.mesh).name}"
        for stage in plan.stages
    )
