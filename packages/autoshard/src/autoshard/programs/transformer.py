"""A Transformer as a tracer sees it: every light operator is there."""

from __future__ import annotations

from autoshard.graph import Graph
from autoshard.programs.pieces import (
    attention,
    causal_mask,
    cross_entropy,
    dense,
    gelu,
    layer_norm,
)
from autoshard.programs.program import Optimizer, Program


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

    Attention is causal and as it is written, without a fused kernel. 12 layers are about 5,000
    operators with Adam.
    """
    p = Program(microbatches=microbatches, dtype=dtype)
    ids, targets = (p.input(name, batch, length, dtype="int32") for name in ("ids", "targets"))
    x = p.lookup(p.parameter("embedding", vocabulary, width), ids)
    x = p.add(x, p.broadcast(p.parameter("positions", length, width), *p.shape(x)))
    mask = causal_mask(p, length)

    for layer in range(n_layers):
        h = layer_norm(p, x, f"{layer}_norm1")
        x = p.add(x, attention(p, h, mask, f"{layer}", heads))
        h = layer_norm(p, x, f"{layer}_norm2")
        h = gelu(p, dense(p, h, f"{layer}_up", 4 * width, bias=True))
        x = p.add(x, dense(p, h, f"{layer}_down", width, bias=True))
    logits = p.einsum("btd,vd->btv", layer_norm(p, x, "last"), "embedding")
    return p.finish(cross_entropy(p, logits, targets), optimizer)
