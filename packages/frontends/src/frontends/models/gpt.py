"""A GPT written for one device, as usual: plain functions, optax AdamW, bytes as tokens.

The code has no meshes, stages or shardings; `parallelize` takes `train_step` unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import optax

VOCABULARY = 256
"""The default: a token is a byte."""

Batch = tuple[jax.Array, jax.Array]


@dataclass(frozen=True, slots=True)
class GPTConfig:
    """Sizes of the model."""

    n_layers: int = 4
    d_model: int = 128
    n_heads: int = 4
    sequence: int = 128
    """Tokens that the model sees at once."""

    vocabulary: int = VOCABULARY
    """Different tokens."""

    dtype: str = "float32"
    """Type of the activations; weights, their updates and the loss are float32."""

    remat: bool = False
    """Whether backward computes a block's activations again, instead of keeping them."""

    def __post_init__(self) -> None:
        for name in ("n_layers", "d_model", "n_heads", "sequence", "vocabulary"):
            if getattr(self, name) < 1:
                raise ValueError(f"a GPT needs {name} >= 1; got {name}={getattr(self, name)}")
        if self.d_model % self.n_heads:
            raise ValueError(
                "d_model must be a multiple of n_heads, since every head gets an equal part; "
                f"got d_model={self.d_model} and n_heads={self.n_heads}"
            )


class Block(TypedDict):
    """Weights of one transformer block."""

    norm_attention: jax.Array
    query: jax.Array
    key: jax.Array
    value: jax.Array
    output: jax.Array
    norm_mlp: jax.Array
    up: jax.Array
    down: jax.Array


class Params(TypedDict):
    """Weights of a GPT."""

    embedding: jax.Array
    position: jax.Array
    blocks: list[Block]
    norm: jax.Array
    head: jax.Array


def init(key: jax.Array, config: GPTConfig) -> Params:
    """Random weights: normal with deviation 0.02, as in GPT-2, and ones for the norms."""
    d = config.d_model

    def normal(key: jax.Array, *shape: int) -> jax.Array:
        return jax.random.normal(key, shape, jnp.float32) * 0.02

    def block(key: jax.Array) -> Block:
        keys = jax.random.split(key, 6)
        return {
            "norm_attention": jnp.ones(d),
            "query": normal(keys[0], d, d),
            "key": normal(keys[1], d, d),
            "value": normal(keys[2], d, d),
            "output": normal(keys[3], d, d),
            "norm_mlp": jnp.ones(d),
            "up": normal(keys[4], d, 4 * d),
            "down": normal(keys[5], 4 * d, d),
        }

    keys = jax.random.split(key, config.n_layers + 3)
    return {
        "embedding": normal(keys[0], config.vocabulary, d),
        "position": normal(keys[1], config.sequence, d),
        "blocks": [block(k) for k in keys[3:]],
        "norm": jnp.ones(d),
        "head": normal(keys[2], d, config.vocabulary),
    }


def layer_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Normalise the last dim to mean 0 and variance 1, then scale it."""
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale


def attention(x: jax.Array, block: Block, n_heads: int) -> jax.Array:
    """Causal multi-head attention on x of shape (batch, sequence, d_model)."""
    batch, sequence, d = x.shape

    def heads(weight: jax.Array) -> jax.Array:
        return (x @ weight).reshape(batch, sequence, n_heads, d // n_heads).transpose(0, 2, 1, 3)

    query, key, value = heads(block["query"]), heads(block["key"]), heads(block["value"])
    scores = query @ key.swapaxes(-1, -2) / math.sqrt(d // n_heads)
    causal = jnp.tril(jnp.ones((sequence, sequence), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    mixed = (weights @ value).transpose(0, 2, 1, 3).reshape(batch, sequence, d)
    return mixed @ block["output"]


def run_block(x: jax.Array, block: Block, config: GPTConfig) -> jax.Array:
    """One transformer block on x of shape (batch, sequence, d_model)."""
    block = jax.tree.map(lambda weight: weight.astype(config.dtype), block)
    x = x + attention(layer_norm(x, block["norm_attention"]), block, config.n_heads)
    hidden = jax.nn.gelu(layer_norm(x, block["norm_mlp"]) @ block["up"])
    return x + hidden @ block["down"]


def forward(params: Params, tokens: jax.Array, config: GPTConfig) -> jax.Array:
    """Logits of shape (batch, sequence, vocabulary) for tokens of shape (batch, sequence)."""
    x = params["embedding"][tokens] + params["position"][: tokens.shape[1]]
    x = x.astype(config.dtype)
    run = jax.checkpoint(run_block, static_argnums=2) if config.remat else run_block
    for block in params["blocks"]:
        x = run(x, block, config)
    x = layer_norm(x, params["norm"].astype(config.dtype))
    return (x @ params["head"].astype(config.dtype)).astype("float32")


def loss(params: Params, batch: Batch, config: GPTConfig) -> jax.Array:
    """Mean cross-entropy, in nats a token, of the next token."""
    tokens, targets = batch
    logits = forward(params, tokens, config)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, targets))


def make_optimizer(learning_rate: float, n_steps: int) -> optax.GradientTransformation:
    """AdamW with a linear warm-up over a tenth of the steps, then a cosine to a tenth."""
    schedule = optax.warmup_cosine_decay_schedule(
        init_value=learning_rate / 10,
        peak_value=learning_rate,
        warmup_steps=max(1, n_steps // 10),
        decay_steps=max(2, n_steps),
        end_value=learning_rate / 10,
    )
    return optax.adamw(schedule, b2=0.95, weight_decay=0.1)


TrainStep = Callable[[Params, Any, Batch], tuple[Params, Any, jax.Array]]


def make_train_step(config: GPTConfig, optimizer: optax.GradientTransformation) -> TrainStep:
    """The training step of one device: (params, opt_state, batch) -> the same, and the loss."""

    def train_step(params: Params, opt_state: Any, batch: Batch) -> tuple[Params, Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(params, batch, config)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    return train_step
