"""One wide Transformer block: few operators, large dims."""

from __future__ import annotations

from autoshard.graph import Graph
from autoshard.programs.program import Program


def block_step(
    *, width: int, heads: int, hidden: int, batch: int, length: int, dtype: str = "float32"
) -> Graph:
    """A training step of attention and an MLP with residuals, without norms and biases, with Adam.

    The block of Meta's AutoParallel (examples/example_autoparallel.py): width 6144, 48 heads,
    hidden 4 * 6144, 8 sequences of length 256 for each row of a mesh (32, 8).
    """
    p = Program(dtype=dtype)
    x = p.input("x", batch, length, width)

    def dense(x: str, name: str, n: int, m: int) -> str:
        return p.einsum("btd,de->bte", x, p.parameter(name, n, m))

    def split(x: str) -> str:
        return p.transpose(p.reshape(x, batch, length, heads, width // heads), 0, 2, 1, 3)

    q, k, v = (split(dense(x, f"w{name}", width, width)) for name in "qkv")
    weights = p.unary("exp", p.linear("mul_const", p.einsum("bhqe,bhke->bhqk", q, k)))
    weights = p.mul(weights, p.unary("reciprocal", p.reduce(weights, 3)))
    mixed = p.transpose(p.einsum("bhqk,bhke->bhqe", weights, v), 0, 2, 1, 3)
    x = p.add(x, dense(p.reshape(mixed, batch, length, width), "wo", width, width))
    h = p.unary("relu", dense(x, "w1", width, hidden))
    x = p.add(x, dense(h, "w2", hidden, width))
    return p.finish(p.mean(p.mul(x, x)))
