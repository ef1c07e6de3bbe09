"""The value types of a graph's outline: which node reads what, and which of these are alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reading:
    """All uses of one value in one phase, as an operand or as an output."""

    value: str
    phase: int
    maker: int
    """The node of the operator that computes the value, or of the input that it is."""
    readers: tuple[int, ...]
    """The node of each use, in order; twice if an operator reads the value twice."""
    asked: tuple[tuple[int, int], ...]
    """For each use: (operator, which of its operands); for an output (-1, which output)."""
    times: tuple[int | None, ...]
    """For each use: the index of the operator; for an output the index of the phase's last
    operator; `None` for an output that is stored back into an input, and so takes no memory."""


@dataclass(frozen=True, slots=True)
class Outline:
    """The nodes of a graph's inputs, operators and outputs, in this order, and what they read.

    Fields that say which entries are alike give, for each, the index of the first entry like it,
    which may be itself.
    """

    inputs: tuple[int, ...]
    """For each input: the first with the same shape, dtype and number of copies."""
    copies: tuple[int, ...]
    """For each input: how many copies of it are held at a time."""
    operators: tuple[int, ...]
    """For each operator: the first that has the same costs and holds as much."""
    held: tuple[tuple[int, ...], ...]
    """For each operator and result: bytes of an element times the number of copies held; 0 for a
    result that is stored in the memory of an input."""
    outputs: tuple[int, ...]
    """The node of each output: the aliased input's if it has an alias, else a node of the output
    alone."""
    intervals: tuple[tuple[int, int], ...]
    """When each node is alive: operator indices [from, to)."""
    readings: tuple[Reading, ...]
    readings_alike: tuple[int, ...]
    """For each reading: the first that needs the same tables."""
