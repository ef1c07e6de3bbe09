"""A GPT whose activations take several times as much as its state, planned and trained."""

from functools import cache
from typing import Any

import frontends.jax as mw
import jax
import numpy as np
from costmodel import Cluster
from frontends.answer.plan import Plan
from frontends.jax.testing import Example
from frontends.models.gpt import GPTConfig, init, make_optimizer, make_train_step
from frontends.plan.plan_fields import Remat, Remats
from frontends.search.plan_step import Planned

HOST = Cluster.preset("two-hosts").resized(n_hosts=1, devices_per_host=2)


@cache
def gpt(n_blocks: int) -> Example:
    config = GPTConfig(n_blocks, 64, 2, sequence=64, vocabulary=64)
    optimizer = make_optimizer(1e-3, 10)
    params = init(jax.random.key(0), config)
    tokens = np.asarray(jax.random.randint(jax.random.key(1), (8, 64), 0, 64))
    step = make_train_step(config, optimizer)
    return Example(step, params, optimizer.init(params), (tokens, np.roll(tokens, 1, 1)))


def planned(remat: Remat | None, n_blocks: int = 3, **options: Any) -> Planned[Any]:
    example = gpt(n_blocks)
    options = {"cluster": HOST, "batch_argnums": (2,), "microbatches": 1, **options}
    return mw.plan_for(example.function, example.arguments, remat=remat, **options)


def remats_of_variants(plan: Plan, example: Example) -> list[Remats]:
    """Train by a saved plan with batches of two sizes; what each variant computes again.

    Losses are compared with those of one device.
    """
    saved = Plan.from_json(plan.to_json())
    step = mw.parallelize(example.function, cluster=HOST, plan=saved, batch_argnums=(2,))
    short = jax.tree.map(lambda tokens: tokens[:4], example.batch)
    ours = theirs = (example.params, example.opt_state)
    single = jax.jit(example.function)
    for batch in (example.batch, short, example.batch):
        *ours, loss = step(*ours, batch)
        *theirs, expected = single(*theirs, batch)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
    return [variant.plan.remats for variant in step.variants]
