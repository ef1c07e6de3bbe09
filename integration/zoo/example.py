"""The form of every model of the zoo: an unmodified training step, and arguments for it.

A model is a module with `CONFIGS`, `init` and `make`. `CONFIGS` has its sizes by name, small ones
for tests and full sizes from the papers' tables. `init(config, key)` returns parameters, and
`make(config, batch=..., **variants)` an `Example`. `Example.of` builds an example from a loss, in
the way in which most training loops are written.
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
"""Epsilon of Adam where results are compared. Adam divides a gradient by its magnitude, so a
gradient that is zero but for rounding makes a step as large as any other, unless epsilon is far
above it."""


def adamw(learning_rate: float = 1e-2) -> optax.GradientTransformation:
    """The optimizer that models are trained with by default."""
    return optax.adamw(learning_rate, eps=EPSILON)


@dataclass(frozen=True)
class Example:
    """A training step for one device, and arguments for it."""

    step: Callable[..., Any]
    """`step(params, opt_state, batch)`, or `step(params, opt_state, batch, key)` with dropout;
    returns new parameters, new state, and the loss or metrics."""

    init: Callable[[Key], Arguments]
    """Returns arguments with values for a key: weights, state, and a batch of random data."""

    batch_argnums: tuple[int, ...] = (2,)

    @property
    def arguments(self) -> Arguments:
        """The arguments' shapes and types as `jax.ShapeDtypeStruct`, without making an array."""
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
        """An example with the usual step: gradients of a loss, then an update by optax.

        Args:
            loss: A function of `(params, batch)`, or of `(params, batch, key)`.
            params: Returns weights for a key.
            batch: Returns a batch for a key, with examples along the leading dim of every leaf.
            optimizer: `adamw()` by default.
            has_key: Whether the loss draws random numbers; the step's last argument is then a raw
                key, as `jax.random.PRNGKey` makes it.
            has_aux: Whether the loss also returns metrics, which the step then returns, too.
            average: If not 0, the state also holds an exponential moving average of the weights,
                of which each step keeps this share.
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
    """The number of elements in a tree of weights, which may be abstract."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))
