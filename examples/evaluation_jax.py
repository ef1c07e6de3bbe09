"""Train, and evaluate in between: on all devices, where the weights are, and on one device."""

import frontends.jax as mw

mw.init(n_devices=4)

import jax
import numpy as np
import optax
from costmodel import Cluster

optimizer = optax.adam(1e-2)
cluster = Cluster.preset("two-hosts").resized(devices_per_host=2)


def logits_of(params, x):
    return jax.nn.relu(x @ params["in"]) @ params["out"]


@mw.parallelize(cluster=cluster, microbatches=2)
def train_step(params, opt_state, batch):
    def loss_of(params):
        logits = logits_of(params, batch["x"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

    loss, gradients = jax.value_and_grad(loss_of)(params)
    updates, opt_state = optimizer.update(gradients, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


def eval_step(params, batch):
    guessed = logits_of(params, batch["x"]).argmax(-1)
    return (guessed == batch["y"]).mean()


def draw(generator, n):
    """Which of eight directions does a noisy arrow point to?"""
    y = generator.integers(0, 8, size=n)
    angle = y * np.pi / 4
    arrows = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    noise = 0.15 * generator.normal(size=(n, 2))
    return {"x": (arrows + noise).astype(np.float32), "y": y.astype(np.int32)}


first, second = jax.random.split(jax.random.key(0))
params = {
    "in": jax.random.normal(first, (2, 64)),
    "out": 0.1 * jax.random.normal(second, (64, 8)),
}
state = (params, optimizer.init(params))
evaluate = train_step.follow(eval_step)
generator = np.random.default_rng(0)
held_out = draw(np.random.default_rng(1), 256)
for number in range(60):
    *state, loss = train_step(*state, draw(generator, 64))
    if number % 20 == 19:
        right = evaluate(state[0], held_out)
        print(f"step {number + 1}: loss {float(loss):.3f}, {float(right):.0%} right")

on_one = jax.jit(eval_step)(train_step.state_dict(state[0]), held_out)
assert float(on_one) == float(evaluate(state[0], held_out))
assert float(on_one) > 0.8
