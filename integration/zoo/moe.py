"""GShard's mixture of experts at the sizes of Alpa's Table 7.

Every second block has experts in place of an MLP, and each token goes to two of them. Routing is
Algorithm 1 of Lepikhin et al., "GShard" (ICLR 2021), without random dispatch to the second expert:
tokens form groups, each expert has a capacity in each group, and a loss balances the experts. A
group is one sequence, so that the loss is a sum over examples. The MLPs are eight times as wide as
the model (Rhino, Table 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.data import text
from zoo.example import Example
from zoo.losses import cross_entropy
from zoo.transformer import (
    Array,
    Params,
    Sizes,
    attention,
    attention_weights,
    block,
    block_weights,
    causal,
    layer_norm,
    norm_weights,
    normal,
)


@dataclass(frozen=True, slots=True)
class Config(Sizes):
    """Sizes of a mixture of experts."""

    n_experts: int
    sequence: int = 1024
    vocabulary: int = 32_000

    @property
    def hidden(self) -> int:
        """Width of the MLPs and of each expert."""
        return 8 * self.width

    @property
    def capacity(self) -> int:
        """Tokens of a group that an expert takes, at least two: twice its even share of the tokens,
        as each token goes to two experts."""
        return max(2, 2 * self.sequence // self.n_experts)


CONFIGS = {
    "moe-tiny": Config(32, 2, 4, 4, sequence=8, vocabulary=64),
    "moe-small": Config(64, 4, 4, 8, sequence=16, vocabulary=128),
    # Alpa, Table 7; the sequence and the vocabulary are from appendix B.
    "moe-380m": Config(768, 8, 16, 8),
    "moe-1.3b": Config(768, 16, 16, 16),
    "moe-2.4b": Config(1024, 16, 16, 16),
    "moe-10b": Config(1536, 16, 16, 32),
    "moe-27b": Config(2048, 16, 32, 48),
    "moe-70b": Config(2048, 32, 32, 64),
}

BALANCE = 0.01
"""Weight of the balancing loss (GShard, section 2.2)."""


def init(config: Config, key: Array) -> Params:
    """Random weights."""
    embedding, position, blocks = jax.random.split(key, 3)
    return {
        "embedding": normal(embedding, config.vocabulary, config.width),
        "position": normal(position, config.sequence, config.width),
        "blocks": [
            (_expert_block if i % 2 else _dense_block)(config, k)
            for i, k in enumerate(jax.random.split(blocks, config.n_layers))
        ],
        "norm": norm_weights(config.width),
    }


def _dense_block(config: Config, key: Array) -> Params:
    return block_weights(key, config.width, config.hidden)


def _expert_block(config: Config, key: Array) -> Params:
    first, gate, up, down = jax.random.split(key, 4)
    n, d, hidden = config.n_experts, config.width, config.hidden
    return {
        "attention": attention_weights(first, d),
        "experts": {
            "norm": norm_weights(d),
            "gate": normal(gate, d, n),
            "up": normal(up, n, d, hidden),
            "down": normal(down, n, hidden, d),
        },
    }


def route(gates: Array, capacity: int) -> tuple[Array, Array]:
    """The weight of each token at each place of each expert, by top-2 gating.

    Args:
        gates: Shares of the experts, shape (group, token, expert).
        capacity: Number of places that an expert has for each group. Tokens for which no place is
            left are not sent to that expert.

    Returns:
        Weights of shape (group, token, expert, place), and the balancing loss of each group.
    """
    n_experts = gates.shape[-1]
    first = jax.nn.one_hot(jnp.argmax(gates, -1), n_experts)
    second = jax.nn.one_hot(jnp.argmax(gates * (1.0 - first), -1), n_experts)
    density = first.mean(1) * gates.mean(1)
    balance = density.mean(-1) * n_experts**2

    first_place = jnp.cumsum(first, 1) - first
    n_first = first.sum(1, keepdims=True)
    second_place = jnp.cumsum(second, 1) - second + n_first
    first = first * (first_place < capacity)
    second = second * (second_place < capacity)
    first_gate, second_gate = (gates * first).sum(-1), (gates * second).sum(-1)
    total = first_gate + second_gate + 1e-9

    def weights(chosen: Array, place: Array, gate: Array) -> Array:
        at = jax.nn.one_hot((place * chosen).sum(-1).astype(jnp.int32), capacity)
        return jnp.einsum("gs,gse,gsc->gsec", gate / total, chosen, at)

    return (
        weights(first, first_place, first_gate) + weights(second, second_place, second_gate),
        balance,
    )


def experts(x: Array, weights: Params, capacity: int) -> tuple[Array, Array]:
    """The mixture of experts on the norm of x (batch, sequence, width), and its balancing loss."""
    normed = layer_norm(x, weights["norm"])
    gates = jax.nn.softmax((normed @ weights["gate"].astype(x.dtype)).astype(jnp.float32), -1)
    combine, balance = route(gates, capacity)
    dispatch = (combine > 0).astype(x.dtype)
    inputs = jnp.einsum("gsec,gsd->egcd", dispatch, normed)
    hidden = jax.nn.gelu(jnp.einsum("egcd,edf->egcf", inputs, weights["up"].astype(x.dtype)))
    outputs = jnp.einsum("egcf,efd->egcd", hidden, weights["down"].astype(x.dtype))
    return jnp.einsum("gsec,egcd->gsd", combine.astype(x.dtype), outputs), balance


def logits(
    params: Params, tokens: Array, config: Config, dtype: Any, remat: bool
) -> tuple[Array, Array]:
    """Logits (batch, sequence, vocabulary) of the next token, and the balancing loss."""
    x = (params["embedding"][tokens] + params["position"]).astype(dtype)
    mask, balance = causal(config.sequence), jnp.zeros(tokens.shape[0])

    def run(x: Array, balance: Array, weights: Params) -> tuple[Array, Array]:
        if "experts" not in weights:
            return block(x, weights, config.n_heads, mask), balance
        x = x + attention(x, weights["attention"], config.n_heads, mask)
        mixed, unbalanced = experts(x, weights["experts"], config.capacity)
        return x + mixed, balance + unbalanced

    for weights in params["blocks"]:
        x, balance = (jax.checkpoint(run) if remat else run)(x, balance, weights)
    return layer_norm(x, params["norm"]) @ params["embedding"].T.astype(dtype), balance


def make(
    config: Config,
    *,
    batch: int,
    optimizer: optax.GradientTransformation | None = None,
    dtype: str = "float32",
    remat: bool = False,
) -> Example:
    """The training step for one device, which returns both losses."""

    def loss(params: Params, batch: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
        scores, balance = logits(params, batch["tokens"], config, jnp.dtype(dtype), remat)
        entropy = jnp.mean(cross_entropy(scores, batch["targets"]))
        balance = jnp.mean(balance)
        return entropy + BALANCE * balance, {"entropy": entropy, "balance": balance}

    return Example.of(
        loss,
        lambda key: init(config, key),
        lambda key: text(key, batch, config.sequence, config.vocabulary),
        optimizer,
        has_aux=True,
    )
