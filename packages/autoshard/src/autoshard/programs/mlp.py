"""Training steps of multi-layer perceptrons: the smallest ones with every parallel algorithm."""

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
    """A training step of dense layers without biases, with a gelu between them and a square loss.

    Args:
        batch: Rows of the input.
        widths: The widths of the input and of each layer's result: `n + 1` for `n` layers.
        microbatches: Runs of forward and backward in a step.
        dtype: The dtype of every value.
        optimizer: The optimizer that updates the parameters.
    """
    program = StepBuilder(microbatches=microbatches, dtype=dtype)
    x = program.input("x", batch, widths[0])
    for layer, (before, after) in enumerate(pairwise(widths), start=1):
        if layer > 1:
            x = program.unary("gelu", x)
        x = program.einsum("bi,ij->bj", x, program.parameter(f"w{layer}", before, after))
    return program.finish(program.mean(program.mul(x, x)), optimizer)
