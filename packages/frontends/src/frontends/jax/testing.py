"""Training steps to try things on: each is small, and has something that is hard to plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from frontends.demo import gpt
from frontends.jax.trace import Trace, trace

_EXAMPLES = 8
"""In a batch: cut into two microbatches, four devices still get an example each."""

_EPSILON = 1e-2
"""Of Adam, which divides a gradient by its own magnitude. A gradient that is zero but for rounding
becomes a step as large as any other unless epsilon is far above the rounding, and then one device
and many would differ by whole steps without an error in either."""


@dataclass(frozen=True)
class Example:
    """A training step `(params, opt_state, batch) -> (params, opt_state, loss)` and arguments."""

    function: Callable[..., Any]
    params: Any
    opt_state: Any
    batch: Any

    @property
    def arguments(self) -> tuple[Any, Any, Any]:
        """What the step is called with."""
        return self.params, self.opt_state, self.batch

    def trace(self, microbatches: int = 2) -> Trace:
        """The step as the planner sees it."""
        return trace(self.function, self.arguments, batch_argnums=(2,), microbatches=microbatches)


def _example(
    loss: Callable[..., Any], params: Any, optimizer: optax.GradientTransformation, batch: Any
) -> Example:
    def step(params: Any, opt_state: Any, batch: Any) -> tuple[Any, Any, Any]:
        value, gradients = jax.value_and_grad(loss)(params, batch)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    return Example(step, params, optimizer.init(params), batch)


def _numbers(rng: np.random.Generator, *shape: int) -> jax.Array:
    return jnp.asarray(rng.normal(size=shape, scale=0.5), jnp.float32)


def mlp(optimizer: optax.GradientTransformation | None = None, width: int = 8) -> Example:
    """Four equal layers, a mean over the batch."""
    rng = np.random.default_rng(0)
    params = [{"w": _numbers(rng, width, width), "b": _numbers(rng, width)} for _ in range(4)]

    def loss(params: Any, batch: Any) -> Any:
        x = batch["x"]
        for layer in params:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        return jnp.mean((x - batch["y"]) ** 2)

    batch = {name: np.asarray(_numbers(rng, _EXAMPLES, width)) for name in ("x", "y")}
    return _example(loss, params, optimizer or optax.sgd(0.1), batch)


def skip() -> Example:
    """What the first layer makes is read again by the last: a value that passes over stages."""
    rng = np.random.default_rng(1)
    params = [_numbers(rng, 8, 8) for _ in range(4)]

    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        first = jnp.tanh(x @ params[0])
        x = jnp.tanh(first @ params[1])
        x = jnp.tanh(x @ params[2])
        return jnp.mean(((x + first) @ params[3] - y) ** 2)

    batch = tuple(np.asarray(_numbers(rng, _EXAMPLES, 8)) for _ in range(2))
    return _example(loss, params, optax.sgd(0.1), batch)


def tied() -> Example:
    """An embedding that is also the output layer: one parameter in the first stage and the last."""
    rng = np.random.default_rng(2)
    params = {"embedding": _numbers(rng, 16, 8), "hidden": [_numbers(rng, 8, 8) for _ in range(3)]}

    def loss(params: Any, batch: Any) -> Any:
        tokens, targets = batch
        x = params["embedding"][tokens]
        for weight in params["hidden"]:
            x = x + jnp.tanh(x @ weight)
        logits = x @ params["embedding"].T
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, targets))

    batch = tuple(rng.integers(0, 16, (_EXAMPLES, 4)).astype(np.int32) for _ in range(2))
    return _example(loss, params, optax.sgd(0.1), batch)


def adamw() -> Example:
    """An optimizer with a schedule and state for each parameter."""
    return mlp(optax.adamw(optax.linear_schedule(1e-2, 1e-3, 10), eps=_EPSILON))


def clipped() -> Example:
    """An update of each parameter that needs all gradients first: apply goes to and fro."""
    return mlp(optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2, eps=_EPSILON)))


def small_gpt(n_layers: int = 1) -> Example:
    """The demo's GPT, as small as it is still one."""
    config = gpt.GPTConfig(n_layers=n_layers, d_model=16, n_heads=4, sequence=8)
    rng = np.random.default_rng(3)
    params = gpt.init(jax.random.key(0), config)
    optimizer = optax.sgd(0.1)
    tokens = [rng.integers(0, gpt.VOCABULARY, (_EXAMPLES, 8)).astype(np.int32) for _ in range(2)]
    step = gpt.make_train_step(config, optimizer)
    return Example(step, params, optimizer.init(params), tuple(tokens))


EXAMPLES: dict[str, Callable[[], Example]] = {
    "mlp": mlp,
    "skip": skip,
    "tied": tied,
    "adamw": adamw,
    "clipped": clipped,
    "gpt": small_gpt,
}
