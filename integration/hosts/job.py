"""The step that is run: a perceptron of equal layers, with its two halves on two hosts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from costmodel import Cluster
from frontends.jax import ParallelStep, parallelize

N_HOSTS = 2
OPTIMIZER = optax.sgd(0.01)


@dataclass(frozen=True, slots=True)
class Job:
    """The sizes of the step, and how it is run."""

    schedules: tuple[str, ...]
    processes_per_host: int
    """Each process has one device."""

    width: int
    n_layers: int
    rows: int
    """The examples of a microbatch."""

    microbatches: int
    rounds: int
    """The number of steps that are timed with each schedule."""

    def arguments(self) -> tuple[Any, Any, Any]:
        """The state and the batch before the first step."""
        rng = np.random.default_rng(0)
        scale = self.width**-0.5
        shape = (self.width, self.width)
        params = [rng.normal(0, scale, shape).astype(np.float32) for _ in range(self.n_layers)]
        shape = (self.microbatches * self.rows, self.width)
        batch = {name: rng.normal(size=shape).astype(np.float32) for name in ("x", "y")}
        return params, OPTIMIZER.init(params), batch

    def parallel(self, schedule: str) -> ParallelStep:
        """The step as a pipeline of two stages, each on the processes of one host."""
        cluster = Cluster.preset("two-hosts").resized(devices_per_host=self.processes_per_host)
        return parallelize(
            train_step,
            cluster=cluster,
            strategy="equal_layers",
            schedule=schedule,
            microbatches=self.microbatches,
            n_layers=N_HOSTS,
        )


SMALL = Job(
    ("1f1b", "eager-1f1b"),
    processes_per_host=2,
    width=64,
    n_layers=4,
    rows=4,
    microbatches=4,
    rounds=1,
)
TIMED = replace(
    SMALL, processes_per_host=1, width=1024, n_layers=12, rows=256, microbatches=16, rounds=15
)
"""One process a host, because this machine has one core for each. A transfer takes a third of the
time of the forward and the backward of a microbatch on one core."""


def train_step(params: Any, opt_state: Any, batch: Any) -> tuple[Any, Any, Any]:
    """The training step for one device."""

    def loss_of(params: Any) -> Any:
        x = batch["x"]
        for weights in params:
            x = jnp.tanh(x @ weights)
        return jnp.mean((x - batch["y"]) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(params)
    updates, opt_state = OPTIMIZER.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss
