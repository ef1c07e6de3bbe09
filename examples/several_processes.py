"""A run of several processes with checkpoints: `mpiexec -n 4 python several_processes.py FOLDER`.

Each process has one device here. Start the same command again after an interruption: it continues
from the last checkpoint.
"""

import sys

import frontends.jax as mw

mw.init(n_devices=4)  # finds the other processes, and joins them

import jax
import jax.numpy as jnp
import numpy as np
import optax
from costmodel import Cluster

LAST, EVERY = 8, 4
folder = sys.argv[1]
optimizer = optax.sgd(0.1)


def init(key):
    first, second = jax.random.split(key)
    params = {
        "in": 0.1 * jax.random.normal(first, (64, 256)),
        "out": 0.1 * jax.random.normal(second, (256, 64)),
    }
    return params, optimizer.init(params)


def train_step(params, opt_state, batch):
    def loss_of(params):
        hidden = jnp.tanh(batch["x"] @ params["in"])
        return jnp.mean((hidden @ params["out"] - batch["y"]) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(params)
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


class Examples:
    """A data set: a process reads only the examples that its devices need."""

    def __len__(self):
        return 1024

    def __getitem__(self, i):
        row = np.sin(np.arange(64) * (1 + i % 7)).astype(np.float32)
        return {"x": row, "y": row}


shape = jax.ShapeDtypeStruct((32, 64), jnp.float32)
cluster = Cluster.preset("two-hosts").resized(devices_per_host=2)
step = mw.parallelize(train_step, cluster=cluster, microbatches=4, donate=True)
key = jax.random.key(0)
like = step.abstract_state(init, key, batch={"x": shape, "y": shape})
done = mw.latest(folder) or 0
state = mw.restore(folder, like) if done else step.init(init, key)
for number, batch in zip(range(done, LAST), step.feed(Examples(), start=done, seed=0)):
    *state, loss = step(*state, batch)
    if (number + 1) % EVERY == 0:
        mw.save(folder, number + 1, tuple(state))
    if jax.process_index() == 0:
        print(f"step {number + 1}: loss {float(loss):.4f}", flush=True)
