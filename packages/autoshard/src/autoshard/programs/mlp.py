"""Multi-layer perceptrons: the smallest steps in which every parallel algorithm shows."""

from __future__ import annotations

from itertools import pairwise

from autoshard.graph.graph import Graph
from autoshard.programs.program import Optimizer, StepBuilder


def mlp_step(
    *, batch: int, width: int, hidden: int, microbatches: int = 1, dtype: str = "float32"
) -> Graph:
    """A training step of `gelu(x @ w1) @ w2` with Adam."""
    return deep_mlp_step(
        batch=batch, widths=(width, hidden, width), microbatches=microbatches, dtype=dtype
    )


def deep_mlp_step(
    *,
    batch: int,
    widths: tuple[int, ...],
    microbatches: int = 1,
    dtype: str = "float32",
    optimizer: Optimizer = "adam",
) -> Graph:
    """A training step of dense layers without biases, a gelu between two, and a square loss.

    Args:
        batch: Rows of the input.
        widths: Of the input and of each layer's result: `n` layers have `n + 1`.
        microbatches: Runs of forward and backward in a step.
        dtype: Of every value.
        optimizer: What updates the parameters.
    """
    program = StepBuilder(microbatches=microbatches, dtype=dtype)
    x = program.input("x", batch, widths[0])
    for layer, (before, after) in enumerate(pairwise(widths), start=1):
        if layer > 1:
            x = program.unary("gelu", x)
        x = program.einsum("bi,ij->bj", x, program.parameter(f"w{layer}", before, after))
    return program.finish(program.mean(program.mul(x, x)), optimizer)
