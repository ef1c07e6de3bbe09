"""Parts of models, with every light operator that a tracer would see."""

from __future__ import annotations

import math

from autoshard.programs.program import FIRST, StepBuilder


def maximum(p: StepBuilder, x: str, dim: int) -> str:
    """The maximum over a dim, which remains with size 1; not differentiated (`stop_gradient`)."""
    shape = p.shape(x)
    kept = (*shape[:dim], 1, *shape[dim + 1 :])
    return p.apply("reduce_max", kept, x, flops=math.prod(shape), dims=(dim,))


def mean_of_last(p: StepBuilder, x: str) -> str:
    """The mean over the last dim, which remains with size 1."""
    return p.linear("mul_const", p.reduce(x, len(p.shape(x)) - 1))


def layer_norm(p: StepBuilder, x: str, name: str) -> str:
    """A layer norm over the last dim (Ba, Kiros and Hinton, "Layer normalization", 2016)."""
    shape = p.shape(x)
    centred = p.sub(x, p.broadcast(mean_of_last(p, x), *shape))
    variance = mean_of_last(p, p.mul(centred, centred))
    spread = p.unary("rsqrt", p.unary("add_const", variance))
    scale, shift = (p.parameter(f"{name}_{kind}", shape[-1]) for kind in ("scale", "shift"))
    x = p.mul(p.mul(centred, p.broadcast(spread, *shape)), p.broadcast(scale, *shape))
    return p.add(x, p.broadcast(shift, *shape))


def rms_norm(p: StepBuilder, x: str, name: str) -> str:
    """An RMS norm (Zhang and Sennrich, "Root mean square layer normalization", 2019)."""
    shape = p.shape(x)
    spread = p.unary("rsqrt", p.unary("add_const", mean_of_last(p, p.mul(x, x))))
    x = p.mul(x, p.broadcast(spread, *shape))
    return p.mul(x, p.broadcast(p.parameter(f"{name}_scale", shape[-1]), *shape))


def dense(p: StepBuilder, x: str, name: str, width: int, *, bias: bool) -> str:
    """`x @ w + b` for x of shape (batch, length, n)."""
    w = p.parameter(f"{name}_w", p.shape(x)[-1], width)
    x = p.einsum("btd,de->bte", x, w)
    return p.add(x, p.broadcast(p.parameter(f"{name}_b", width), *p.shape(x))) if bias else x


def softmax(p: StepBuilder, x: str) -> str:
    """A softmax over the last dim, with its maximum subtracted first."""
    shape = p.shape(x)
    last = len(shape) - 1
    powers = p.unary("exp", p.sub(x, p.broadcast(maximum(p, x, last), *shape)))
    return p.mul(powers, p.broadcast(p.unary("reciprocal", p.reduce(powers, last)), *shape))


def causal_mask(p: StepBuilder, length: int) -> str:
    """The keys that each query may see, shape (query, key); computed once, from constants."""
    square = (length, length)
    rows, columns = (p.apply("iota", square, dtype="int32") for _ in range(2))
    return p.apply("ge", square, rows, columns, flops=length**2, dtype="bool")


def masked(p: StepBuilder, x: str, mask: str) -> str:
    """`x` where the mask is true, elsewhere a constant without gradient."""
    visible = p.broadcast(mask, *p.shape(x))
    result = p.pointwise("select_n", (), x, visible)
    return p.record(result, (x, lambda g: p.pointwise("select_n", FIRST, g, visible)))


def attention(p: StepBuilder, x: str, mask: str, name: str, heads: int) -> str:
    """Multi-head attention with biases, as single operators, without a fused kernel.

    Vaswani et al., "Attention is all you need", 2017.
    """
    batch, length, width = p.shape(x)

    def split(x: str) -> str:
        return p.transpose(p.reshape(x, batch, length, heads, width // heads), 0, 2, 1, 3)

    q, k, v = (split(dense(p, x, f"{name}_{which}", width, bias=True)) for which in "qkv")
    scores = p.linear("mul_const", p.einsum("bhqe,bhke->bhqk", q, k))
    mixed = p.einsum("bhqk,bhke->bhqe", softmax(p, masked(p, scores, mask)), v)
    mixed = p.reshape(p.transpose(mixed, 0, 2, 1, 3), batch, length, width)
    return dense(p, mixed, f"{name}_out", width, bias=True)


def gelu(p: StepBuilder, x: str) -> str:
    """A gelu by tanh, as in jax.nn (Hendrycks and Gimpel, "Gaussian error linear units", 2016)."""
    cube = p.mul(p.mul(x, x), x)
    inner = p.linear("mul_const", p.add(x, p.linear("mul_const", cube)))
    half = p.linear("mul_const", p.unary("add_const", p.unary("tanh", inner)))
    return p.mul(x, half)


def cross_entropy(p: StepBuilder, logits: str, targets: str) -> str:
    """The mean loss of logits (b, t, v) for targets (b, t)."""
    shape = p.shape(logits)
    places = shape[:2]
    shifted = p.sub(logits, p.broadcast(maximum(p, logits, 2), *shape))
    total = p.unary("log", p.reduce(p.unary("exp", shifted), 2))
    picked = p.record(
        p.apply("pick", places, shifted, targets),
        (shifted, lambda g: p.apply("pick_gradient", shape, g, targets)),
    )
    return p.mean(p.sub(p.reshape(total, *places), picked))
