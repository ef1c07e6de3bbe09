"""A Transformer as a tracer sees it: every light operator is there."""

from __future__ import annotations

from autoshard.graph import Graph
from autoshard.programs.pieces import (
    causal_mask,
    cross_entropy,
    dense,
    gelu,
    layer_norm,
    masked,
    softmax,
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

    def split(x: str) -> str:
        return p.transpose(p.reshape(x, batch, length, heads, width // heads), 0, 2, 1, 3)

    for layer in range(n_layers):
        h = layer_norm(p, x, f"{layer}_norm1")
        q, k, v = (split(dense(p, h, f"{layer}_{name}", width, bias=True)) for name in "qkv")
        scores = p.linear("mul_const", p.einsum("bhqe,bhke->bhqk", q, k))
        mixed = p.einsum("bhqk,bhke->bhqe", softmax(p, masked(p, scores, mask)), v)
        mixed = p.reshape(p.transpose(mixed, 0, 2, 1, 3), batch, length, width)
        x = p.add(x, dense(p, mixed, f"{layer}_out", width, bias=True))
        h = layer_norm(p, x, f"{layer}_norm2")
        h = gelu(p, dense(p, h, f"{layer}_up", 4 * width, bias=True))
        x = p.add(x, dense(p, h, f"{layer}_down", width, bias=True))
    logits = p.einsum("btd,vd->btv", layer_norm(p, x, "last"), "embedding")
    return p.finish(cross_entropy(p, logits, targets), optimizer)
