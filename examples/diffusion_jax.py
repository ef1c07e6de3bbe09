"""Train a denoising diffusion model of small pictures in JAX; the step draws random numbers."""

import frontends.jax as mw

mw.init(n_devices=4)

import jax
import jax.numpy as jnp
import numpy as np
import optax
from costmodel import Cluster

SIDE, CHANNELS, BATCH, STEPS, LEVELS = 16, 32, 32, 30, 100
optimizer = optax.adam(2e-3)
kept = jnp.cumprod(1 - jnp.linspace(1e-4, 0.05, LEVELS))  # what noise leaves of a picture, by level


def init(key):
    keys = iter(jax.random.split(key, 4))
    shapes = [(3, 3, 2, CHANNELS), *[(3, 3, CHANNELS, CHANNELS)] * 2, (3, 3, CHANNELS, 1)]
    scale = lambda shape: (shape[0] * shape[1] * shape[2]) ** -0.5
    params = [scale(shape) * jax.random.normal(next(keys), shape) for shape in shapes]
    return params, optimizer.init(params)


def noise_of(params, noisy, level):
    """Predict the noise in a picture; the level is a second channel."""
    x = jnp.concatenate([noisy, jnp.broadcast_to(level, noisy.shape)], axis=-1)
    for i, kernel in enumerate(params):
        x = jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.silu(x) if i < len(params) - 1 else x
    return x


def train_step(params, opt_state, key, pictures):
    key, for_level, for_noise = jax.random.split(key, 3)
    level = jax.random.randint(for_level, (len(pictures), 1, 1, 1), 0, LEVELS)
    noise = jax.random.normal(for_noise, pictures.shape)
    noisy = jnp.sqrt(kept[level]) * pictures + jnp.sqrt(1 - kept[level]) * noise

    def loss_of(params):
        return jnp.mean((noise_of(params, noisy, level / LEVELS) - noise) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(params)
    updates, opt_state = optimizer.update(gradients, opt_state)
    return optax.apply_updates(params, updates), opt_state, key, loss


def pictures(draw):
    """Squares of random places and sizes, white on black."""
    rows = np.full((BATCH, SIDE, SIDE, 1), -1, np.float32)
    for picture in rows:
        top, left, size = draw.integers(0, 8), draw.integers(0, 8), draw.integers(3, 8)
        picture[top : top + size, left : left + size] = 1
    return rows


draw = np.random.default_rng(0)
step = mw.parallelize(train_step, cluster=Cluster.preset("two-hosts:1"), microbatches=2)
state = (*init(jax.random.key(0)), jax.random.key(1))
losses = []
for _ in range(STEPS):
    *state, loss = step(*state, pictures(draw))
    losses.append(float(loss))
print(repr(step.plan))
print(f"loss {np.mean(losses[:5]):.2f} to {np.mean(losses[-5:]):.2f}")
assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])
