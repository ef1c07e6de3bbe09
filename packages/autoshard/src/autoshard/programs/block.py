"""A training step of wide Transformer blocks: few operators with large dims."""

from __future__ import annotations

from autoshard.graph.graph import Graph
from autoshard.programs.program import Optimizer, StepBuilder


def block_step(
    *,
    width: int,
    heads: int,
    hidden: int,
    batch: int,
    length: int,
    n_layers: int = 1,
    microbatches: int = 1,
    dtype: str = "float32",
    optimizer: Optimizer = "adam",
) -> Graph:
    """A training step of attention and an MLP with residuals, without norms and biases.

    This is the block of Meta's AutoParallel (examples/example_autoparallel.py), which has width
    6144, 48 heads, hidden 4 * 6144, and 8 sequences of length 256 for each row of a mesh (32, 8).
    """
    p = StepBuilder(microbatches=microbatches, dtype=dtype)
    x = p.input("x", batch, length, width)
    for layer in range(n_layers):
        x = _block(p, x, f"{layer}_", heads, hidden)
    return p.finish(p.mean(p.mul(x, x)), optimizer)


def _block(p: StepBuilder, x: str, name: str, heads: int, hidden: int) -> str:
    batch, length, width = p.shape(x)

    def dense(x: str, which: str, m: int) -> str:
        return p.einsum("btd,de->bte", x, p.parameter(name + which, p.shape(x)[-1], m))

    def split(x: str) -> str:
        return p.transpose(p.reshape(x, batch, length, heads, width // heads), 0, 2, 1, 3)

    q, k, v = (split(dense(x, which, width)) for which in "qkv")
    weights = p.unary("exp", p.linear("mul_const", p.einsum("bhqe,bhke->bhqk", q, k)))
    weights = p.mul(weights, p.unary("reciprocal", p.reduce(weights, 3)))
    mixed = p.transpose(p.einsum("bhqk,bhke->bhqe", weights, v), 0, 2, 1, 3)
    x = p.add(x, dense(p.reshape(mixed, batch, length, width), "out", width))
    return p.add(x, dense(p.unary("relu", dense(x, "up", hidden)), "down", width))
