"""A training step of Llama 3: grouped-query attention, rotary positions, RMS norms and SwiGLU."""

from __future__ import annotations

from autoshard.graph.graph import Graph
from autoshard.programs.pieces import (
    causal_mask,
    cross_entropy,
    dense,
    masked,
    rms_norm,
    softmax,
)
from autoshard.programs.program import Optimizer, StepBuilder


def llama_step(
    *,
    batch: int,
    length: int,
    n_layers: int = 32,
    width: int = 4096,
    heads: int = 32,
    kv_heads: int = 8,
    hidden: int = 14336,
    vocabulary: int = 128256,
    microbatches: int = 1,
    dtype: str = "bfloat16",
    optimizer: Optimizer = "adam",
) -> Graph:
    """A training step of Llama 3; the defaults are the 8B model's.

    "The Llama 3 Herd of Models", 2024, table 3. The head is not tied to the embedding. Attention
    consists of single operators, without a fused kernel, and all values have one dtype.
    """
    p = StepBuilder(microbatches=microbatches, dtype=dtype)
    group, size = heads // kv_heads, width // heads
    ids, targets = (p.input(name, batch, length, dtype="int32") for name in ("ids", "targets"))
    x = p.lookup(p.parameter("embedding", vocabulary, width), ids)
    mask = causal_mask(p, length)
    angles = tuple(p.unary(kind, p.apply("iota", (length, size))) for kind in ("cos", "sin"))

    for layer in range(n_layers):
        h = rms_norm(p, x, f"{layer}_norm1")
        q, k, v = (
            p.reshape(dense(p, h, f"{layer}_{name}", n * size, bias=False), batch, length, n, size)
            for name, n in (("q", heads), ("k", kv_heads), ("v", kv_heads))
        )
        q, k = (rotary(p, p.transpose(y, 0, 2, 1, 3), *angles) for y in (q, k))
        q = p.reshape(q, batch, kv_heads, group, length, size)
        scores = p.linear("mul_const", p.einsum("bngqe,bnke->bngqk", q, k))
        mixed = p.einsum("bngqk,bkne->bqnge", softmax(p, masked(p, scores, mask)), v)
        mixed = p.reshape(mixed, batch, length, width)
        x = p.add(x, dense(p, mixed, f"{layer}_out", width, bias=False))
        h = rms_norm(p, x, f"{layer}_norm2")
        gate = dense(p, h, f"{layer}_gate", hidden, bias=False)
        silu = p.mul(gate, p.unary("logistic", gate))
        h = p.mul(silu, dense(p, h, f"{layer}_up", hidden, bias=False))
        x = p.add(x, dense(p, h, f"{layer}_down", width, bias=False))
    logits = dense(p, rms_norm(p, x, "last"), "head", vocabulary, bias=False)
    return p.finish(cross_entropy(p, logits, targets), optimizer)


def rotary(p: StepBuilder, x: str, cos: str, sin: str) -> str:
    """`x * cos + rotate_half(x) * sin` for x of shape (batch, heads, length, size).

    Su et al., "RoFormer", 2021, but with the halves swapped instead of the pairs, as in the Llama
    that is published for the transformers library.
    """
    shape = p.shape(x)
    half = (*shape[:3], shape[3] // 2)

    def cut(x: str) -> str:
        return p.apply("slice", half, x)

    first, second = (
        p.record(cut(x), (x, lambda g: p.apply("pad", shape, g, zeros=True))) for _ in range(2)
    )
    second = p.linear("neg", second)
    joined = p.apply("concatenate", shape, second, first, dim=3)
    rotated = p.record(joined, (second, cut), (first, cut))
    turned = p.mul(rotated, p.broadcast(sin, *shape))
    return p.add(p.mul(x, p.broadcast(cos, *shape)), turned)
