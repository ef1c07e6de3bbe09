"""Pretrain a small GPT on real text in JAX; `mpiexec -n 4 python gpt_jax.py` runs it in processes.

The text is the source of Python's standard library, as bytes; put your own into `text`.
"""

import sysconfig
from pathlib import Path

import frontends.jax as mw

mw.init(n_devices=4)  # of all processes together; before JAX is used

import jax
import jax.numpy as jnp
import numpy as np
import optax
from costmodel import Cluster

LAYERS, WIDTH, HEADS, LENGTH, BATCH, STEPS = 4, 64, 4, 64, 16, 20
optimizer = optax.adamw(3e-3)


def init(key):
    keys = iter(jax.random.split(key, 2 + 4 * LAYERS))
    normal = lambda *shape: 0.02 * jax.random.normal(next(keys), shape)
    block = lambda: {
        "qkv": normal(WIDTH, 3 * WIDTH),
        "out": normal(WIDTH, WIDTH),
        "up": normal(WIDTH, 4 * WIDTH),
        "down": normal(4 * WIDTH, WIDTH),
    }
    params = {"embed": normal(256, WIDTH), "place": normal(LENGTH, WIDTH)}
    params |= {f"block{i}": block() for i in range(LAYERS)}
    return params, optimizer.init(params)


def norm(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def block(p, x):
    heads = (x.shape[0], LENGTH, HEADS, WIDTH // HEADS)
    q, k, v = (part.reshape(heads) for part in jnp.split(norm(x) @ p["qkv"], 3, axis=-1))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (WIDTH // HEADS) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape)
    x = x + mixed @ p["out"]
    return x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"]


def train_step(params, opt_state, tokens):  # for one device, as usual
    def loss_of(params):
        x = params["embed"][tokens[:, :-1]] + params["place"]
        for i in range(LAYERS):
            x = block(params[f"block{i}"], x)
        logits = norm(x) @ params["embed"].T
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    loss, gradients = jax.value_and_grad(loss_of)(params)
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


library = Path(sysconfig.get_paths()["stdlib"])
text = np.frombuffer(b"".join(p.read_bytes() for p in sorted(library.glob("*.py"))), np.uint8)
pieces = np.lib.stride_tricks.sliding_window_view(text, LENGTH + 1)
draw = np.random.default_rng(0)
batches = (pieces[draw.integers(len(pieces), size=BATCH)].astype(np.int32) for _ in range(STEPS))

cluster = Cluster.preset("two-hosts").resized(devices_per_host=2)
step = mw.parallelize(train_step, cluster=cluster, microbatches=4, donate=True)
key = jax.random.key(0)
step.prepare(*jax.eval_shape(init, key), next(batches))
state = step.init(init, key)
losses = []
for tokens in batches:
    *state, loss = step(*state, tokens)
    losses.append(float(loss))
if jax.process_index() == 0:
    print(repr(step.plan))
    print(f"loss {losses[0]:.2f} to {losses[-1]:.2f}")
assert losses[-1] < losses[0] - 1
