"""Optimizers as training loops chain them; each adds something else that is hard to plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax

from zoo.example import EPSILON, adamw


def momentum() -> optax.GradientTransformation:
    """SGD with momentum: one array of state for each parameter."""
    return optax.sgd(1e-2, momentum=0.9, nesterov=True)


def scheduled() -> optax.GradientTransformation:
    """AdamW whose learning rate is computed from a counter that is part of the state."""
    schedule = optax.warmup_cosine_decay_schedule(1e-3, 1e-2, 2, 10)
    return optax.adamw(schedule, b2=0.95, eps=EPSILON)


def clipped() -> optax.GradientTransformation:
    """AdamW with clipping by the global norm: every update waits for all gradients."""
    return optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2, eps=EPSILON))


def averaged() -> optax.GradientTransformation:
    """SGD with gradients that are averaged over steps."""
    return optax.chain(optax.ema(0.9), optax.sgd(1e-2))


def masked() -> optax.GradientTransformation:
    """AdamW that decays the weights of matrices only, and does not train positions at all."""

    def is_matrix(params: Any) -> Any:
        return jax.tree.map(lambda w: w.ndim > 1, params)

    def is_position(params: Any) -> Any:
        return jax.tree.map_with_path(lambda path, _: "position" in str(path[0]), params)

    return optax.chain(
        optax.adamw(1e-2, eps=EPSILON, mask=is_matrix),
        optax.masked(optax.set_to_zero(), is_position),
    )


OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "adamw": adamw,
    "momentum": momentum,
    "scheduled": scheduled,
    "clipped": clipped,
    "averaged": averaged,
    "masked": masked,
}
