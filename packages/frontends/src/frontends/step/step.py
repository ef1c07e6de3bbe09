"""A traced training step, independent of the framework it came from.

The step of one device reads a batch; the parallel one runs *forward* and *backward* once for each
microbatch and *apply* once, on sums over the microbatches. `frontends.step.accumulate` proves that
these sums equal what the single device computes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from autoshard import Graph, Operator, Value, elementwise, structural_hash

FORWARD, BACKWARD, APPLY = range(3)
"""Phases of the graph of every step, by index."""

PhaseName = Literal["forward", "backward", "apply"]

PHASE_NAMES: tuple[PhaseName, ...] = ("forward", "backward", "apply")

STATE = ("parameter", "optimizer_state")
"""Roles of arguments that a step keeps, and returns new versions of."""

IDENTITY = "identity"
"""Kind of an operator that returns its operand; it is ours, not a framework's."""

SUM = "sum of copies"
"""Kind of an operator that sums a total over the replicas of a stage; see `replicas`."""


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """One training step as a graph with the shapes of a microbatch."""

    graph: Graph
    """Phases forward and backward run once a microbatch, apply once a step."""

    microbatches: int
    """How many parts the batch is cut into along its leading dim."""

    summed: tuple[str, ...]
    """Values of forward or backward that apply reads as sums over the microbatches."""

    fingerprint: str
    """Digest that is equal for steps that compute the same; a plan refuses a step with another."""

    has_statistics: bool = False
    """Whether microbatches use statistics of their own examples, so that the result is not that of
    the whole batch."""

    original: Mapping[str, str] = field(default_factory=dict)
    """By operator of backward that computes activations again: the operator of forward."""


def fingerprint(graph: Graph, microbatches: int) -> str:
    """A digest of everything that a plan depends on: operators, shapes, order, microbatches."""
    text = f"{microbatches}\n{structural_hash(graph)}\n{graph}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def identity(value: Value, name: str) -> Operator:
    """An operator of apply that returns `value` under another name."""
    rule = elementwise((value.shape,), value.shape, ((0,),))
    return Operator(name, IDENTITY, (value.name,), (name,), rule, 0.0, APPLY)


def sum_of_copies(value: Value, parts: Sequence[str]) -> Operator:
    """An operator of apply that adds up the parts of `value`, and has its name as result.

    If the first part is a partial sum over devices, the others are not, and count once.
    """
    shapes = (value.shape,) * len(parts)
    rule = elementwise(shapes, value.shape, ((0,),))
    flops = float((len(parts) - 1) * math.prod(value.shape))
    return Operator(f"sum.{value.name}", SUM, tuple(parts), (value.name,), rule, flops, APPLY)
