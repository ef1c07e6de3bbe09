"""The rule of operators that have no rule: none of their dims is split."""

from __future__ import annotations

from autoshard.base.checks import checked
from autoshard.graph.rule import Dims, Factor, Rule


@checked
def whole(
    operand_shapes: tuple[tuple[int, ...], ...], result_shapes: tuple[tuple[int, ...], ...]
) -> Rule:
    """The fallback rule: every device has to have all of every operand."""
    sizes = [size for shape in operand_shapes + result_shapes for size in shape if size != 1]
    numbers = iter(range(len(sizes)))

    def dims(shape: tuple[int, ...]) -> Dims:
        return tuple(() if size == 1 else (next(numbers),) for size in shape)

    return Rule(
        tuple(Factor(size, "whole") for size in sizes),
        tuple(dims(shape) for shape in operand_shapes),
        tuple(dims(shape) for shape in result_shapes),
    )
