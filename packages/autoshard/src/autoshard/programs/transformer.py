"""A training step of a Transformer, with every light operator that a tracer would see."""

from __future__ import annotations

from autoshard.graph.graph import Graph
from autoshard.programs.pieces import (
    attention,
    causal_mask,
    cross_entropy,
    dense,
    gelu,
    layer_norm,
)
from autoshard.programs.program import Optimizer, StepBuilder


def transformer_step(
    *,
    n_layers: int,
    batch: int,
    length: int,
    width: int,
    heads: int,
    vocabulary: int,
    microbatches: int = 1,
    dtype: str = "float32",
    optimizer: Optimizer = "adam",
) -> Graph:
    """A training step of a GPT-2 (Radford et al., 2019): pre-norm, biases, tied embeddings.

    Attention is causal and consists of single operators, without a fused kernel. 12 layers with
    Adam have about 5,000 operators.
    """
    p = StepBuilder(microbatches=microbatches, dtype=dtype)
    ids, targets = (p.input(name, batch, length, dtype="int32") for name in ("ids", "targets"))
    x = p.lookup(p.parameter("embedding", vocabulary, width), ids)
    x = p.add(x, p.broadcast(p.parameter("positions", length, width), *p.shape(x)))
    mask = causal_mask(p, length)
    for layer in range(n_layers):
        x = transformer_layer(p, x, mask, f"{layer}", heads)
    logits = p.einsum("btd,vd->btv", layer_norm(p, x, "last"), "embedding")
    return p.finish(cross_entropy(p, logits, targets), optimizer)


def transformer_layer(p: StepBuilder, x: str, mask: str, name: str, heads: int) -> str:
    """Attention and an MLP four times as wide, each after a norm and with a residual."""
    width = p.shape(x)[-1]
    x = p.add(x, attention(p, layer_norm(p, x, f"{name}_norm1"), mask, name, heads))
    h = dense(p, layer_norm(p, x, f"{name}_norm2"), f"{name}_up", 4 * width, bias=True)
    return p.add(x, dense(p, gelu(p, h), f"{name}_down", width, bias=True))
