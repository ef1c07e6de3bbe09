"""`Case`: an operator of the table with a numpy program for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from autoshard.graph.rule import Rule
from autoshard.rules import rule_of
from autoshard.testing.rules import Array, Part, Run

Shape = tuple[int, ...]

SIZES = st.sampled_from([1, 2, 3, 4, 6, 8])
"""Sizes of dims, of which many are multiples of the meshes' axes and of each other."""


@dataclass(frozen=True, slots=True)
class Case:
    """The arguments of `rule_of` for an operator, and what the operator computes."""

    kind: str
    operand_shapes: tuple[Shape, ...]
    result_shapes: tuple[Shape, ...]
    run: Run
    attributes: dict[str, Any] = field(default_factory=dict)
    operands: list[Array] | None = None
    """The whole operands; `None` for small integers."""

    @property
    def rule(self) -> Rule:
        """The rule that the table has for the operator."""
        return rule_of(self.kind, self.operand_shapes, self.result_shapes, **self.attributes)


Maker = Callable[[st.DrawFn, str], Case]
"""Draws a case of a kind."""


def shape_of(draw: st.DrawFn, min_size: int = 1, max_size: int = 3) -> Shape:
    """A shape of small dims."""
    return tuple(draw(st.lists(SIZES, min_size=min_size, max_size=max_size)))


def generator(draw: st.DrawFn) -> np.random.Generator:
    """A random number generator for operands."""
    return np.random.default_rng(draw(st.integers(0, 99)))


def places(index: Array, size: int) -> Array:
    """For each of `size` global indices its position in a shard, or -1 if the shard lacks it.

    Args:
        index: The global indices that the shard holds, shape (n,).
        size: The size of the whole dim.
    """
    local = np.full(size, -1)
    local[index] = np.arange(len(index))
    return local


def from_wholes(function: Callable[..., Array | list[Array]]) -> Run:
    """The program of an operator that depends on nothing of its part but the shards."""

    def run(operands: list[Array], part: Part) -> list[Array]:
        results = function(*operands)
        return results if isinstance(results, list) else [results]

    return run


def softmax(x: Array, axis: int = -1) -> Array:
    """A softmax along an axis."""
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(e / e.sum(axis=axis, keepdims=True))
