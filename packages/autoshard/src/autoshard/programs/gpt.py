"""A training step of a GPT, with the fewest operators that have all its parallel algorithms."""

from __future__ import annotations

from autoshard.graph.graph import Graph
from autoshard.programs.program import StepBuilder


def gpt_step(
    *,
    n_layers: int,
    batch: int,
    length: int,
    width: int,
    heads: int,
    vocabulary: int,
    microbatches: int = 1,
) -> Graph:
    """A training step of a GPT with layer norms, biases, tied embeddings and Adam."""
    p = StepBuilder(microbatches=microbatches)
    ids = p.input("ids", batch, length, dtype="int32")
    x = p.lookup(p.parameter("embedding", vocabulary, width), ids)
    x = p.add(x, p.parameter("positions", length, width))

    def norm(x: str, name: str) -> str:
        centred = p.sub(x, p.reduce(x, 2))
        spread = p.unary("rsqrt", p.reduce(p.mul(centred, centred), 2))
        scaled = p.mul(p.mul(centred, spread), p.parameter(f"{name}_scale", width))
        return p.add(scaled, p.parameter(f"{name}_shift", width))

    def dense(x: str, name: str, n: int, m: int) -> str:
        return p.add(
            p.einsum("btd,de->bte", x, p.parameter(f"{name}_w", n, m)), p.parameter(f"{name}_b", m)
        )

    def split(x: str) -> str:
        return p.transpose(p.reshape(x, batch, length, heads, width // heads), 0, 2, 1, 3)

    for layer in range(n_layers):
        h = norm(x, f"{layer}_norm1")
        q, k, v = (split(dense(h, f"{layer}_{n}", width, width)) for n in "qkv")
        scores = p.einsum("bhqe,bhke->bhqk", q, k)
        weights = p.unary("exp", scores)
        weights = p.mul(weights, p.unary("reciprocal", p.reduce(weights, 3)))
        mixed = p.transpose(p.einsum("bhqk,bhke->bhqe", weights, v), 0, 2, 1, 3)
        mixed = p.reshape(mixed, batch, length, width)
        x = p.add(x, dense(mixed, f"{layer}_out", width, width))
        h = p.unary("gelu", dense(norm(x, f"{layer}_norm2"), f"{layer}_up", width, 4 * width))
        x = p.add(x, dense(h, f"{layer}_down", 4 * width, width))
    logits = p.einsum("btd,vd->btv", norm(x, "last"), "embedding")
    return p.finish(p.mean(p.unary("log", p.reduce(p.unary("exp", logits), 2))))
