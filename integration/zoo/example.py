"""What every model of the zoo gives: an unmodified training step, and arguments for it.

A model is a module with `CONFIGS`, its sizes by name (small ones for tests, full-size ones from
the papers' tables), `init(config, key)`, its parameters, and `make(config, batch=..., **variants)`,
which returns an `Example`. `Example.of` makes one of a loss, as most training loops are written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax

Tree = Any
Key = jax.Array
Arguments = tuple[Any, ...]

EPSILON = 1e-2
"""Of Adam, where results are compared: it divides a gradient by its own magnitude, so that one that
is zero but for rounding makes a step as large as any other unless epsilon is far above it."""


def adamw(learning_rate: float = 1e-2) -> optax.GradientTransformation:
    """What the models are trained with if not told otherwise."""
    return optax.adamw(learning_rate, eps=EPSILON)


@dataclass(frozen=True)
class Example:
    """A training step of one device, and arguments for it."""

    step: Callable[..., Any]
    """`step(params, opt_state, batch)`, or `(params, opt_state, batch, key)` with dropout; returns
    new parameters, new state, and the loss or metrics."""

    init: Callable[[Key], Arguments]
    """Real arguments: weights, state, and a batch of random data."""

    batch_argnums: tuple[int, ...] = (2,)

    @property
    def arguments(self) -> Arguments:
        """The arguments' shapes and types, as `jax.ShapeDtypeStruct`; makes no array."""
        return tuple(jax.eval_shape(self.init, jax.random.key(0)))

    @classmethod
    def of(
        cls,
        loss: Callable[..., Any],
        params: Callable[[Key], Tree],
        batch: Callable[[Key], Tree],
        optimizer: optax.GradientTransformation | None = None,
        *,
        has_key: bool = False,
        has_aux: bool = False,
        average: float = 0.0,
    ) -> Example:
        """The usual step: gradients of a loss, then optax.

        Args:
            loss: Of `(params, batch)`, or `(params, batch, key)`.
            params: Real weights of a key.
            batch: A real batch of a key, examples in the leading dim of every leaf.
            optimizer: `adamw()` by default.
            has_key: Whether the loss draws random numbers; the step's last argument is then a raw
                key, as `jax.random.PRNGKey` makes it.
            has_aux: Whether the loss returns metrics beside itself, which the step returns too.
            average: If not 0, the state holds an exponential moving average of the weights, of
                which each step keeps this share.
        """
        optimizer = optimizer or adamw()

        def step(params: Tree, opt_state: Tree, batch: Tree, *key: Key) -> tuple[Tree, Tree, Any]:
            value, gradients = jax.value_and_grad(loss, has_aux=has_aux)(params, batch, *key)
            state, *averages = opt_state if average else (opt_state,)
            updates, state = optimizer.update(gradients, state, params)
            params = optax.apply_updates(params, updates)
            if not average:
                return params, state, value
            averages = optax.incremental_update(params, averages[0], 1.0 - average)
            return params, (state, averages), value

        def init(key: Key) -> Arguments:
            for_weights, for_batch, for_step = jax.random.split(key, 3)
            weights = params(for_weights)
            state = optimizer.init(weights)
            more = (jax.random.key_data(for_step),) if has_key else ()
            return weights, (state, weights) if average else state, batch(for_batch), *more

        return cls(step, init)


def n_parameters(params: Tree) -> int:
    """How many numbers a tree of (abstract) weights holds."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))
