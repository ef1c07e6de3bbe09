"""An operator of the table with a program for it."""

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
"""Of a dim: they often divide by a mesh's axes, and by each other."""


@dataclass(frozen=True, slots=True)
class Case:
    """What `rule_of` is asked, and what the operator computes."""

    kind: str
    operand_shapes: tuple[Shape, ...]
    result_shapes: tuple[Shape, ...]
    run: Run
    attributes: dict[str, Any] = field(default_factory=dict)
    operands: list[Array] | None = None
    """Whole; None for small integers."""

    @property
    def rule(self) -> Rule:
        """The table's."""
        return rule_of(self.kind, self.operand_shapes, self.result_shapes, **self.attributes)


Maker = Callable[[st.DrawFn, str], Case]
"""Draws a case of a kind."""


def shape_of(draw: st.DrawFn, min_size: int = 1, max_size: int = 3) -> Shape:
    """A shape of small dims."""
    return tuple(draw(st.lists(SIZES, min_size=min_size, max_size=max_size)))


def generator(draw: st.DrawFn) -> np.random.Generator:
    """A generator of operands."""
    return np.random.default_rng(draw(st.integers(0, 99)))


def places(index: Array, size: int) -> Array:
    """For each of `size` global indices its place in a shard, or -1 for one it lacks.

    Args:
        index: The global indices that the shard holds, shape (n,).
        size: Of the whole dim.
    """
    found = np.full(size, -1)
    found[index] = np.arange(len(index))
    return found


def from_wholes(function: Callable[..., Array | list[Array]]) -> Run:
    """An operator that needs to know nothing of its part but the shards."""

    def run(operands: list[Array], part: Part) -> list[Array]:
        made = function(*operands)
        return made if isinstance(made, list) else [made]

    return run
