"""What building a problem needs to know of a graph, on any mesh: who reads what, what is alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reading:
    """A value, and the operands and outputs that it is read as in one phase."""

    value: str
    phase: int
    maker: int
    """The node of what makes or stores it."""
    readers: tuple[int, ...]
    """The node of each use, in order; twice where an operator reads it twice."""
    asked: tuple[tuple[int, int], ...]
    """Of each use: the operator and which of its operands; or (-1, which output)."""
    times: tuple[int | None, ...]
    """Of each use: the operator's, or the last one of the phase for an output; `None` for what is
    stored back into an input, and so takes no memory."""


@dataclass(frozen=True, slots=True)
class Outline:
    """The nodes of a graph's inputs, operators and outputs, in this order, and what they read.

    What is alike is given by the index of the first that is so, which may be itself.
    """

    inputs: tuple[int, ...]
    """Per input the first of the same shape, type and copies."""
    copies: tuple[int, ...]
    """Per input how often it is held at a time."""
    operators: tuple[int, ...]
    """Per operator the first that costs and holds as much."""
    held: tuple[tuple[int, ...], ...]
    """Per operator and result: bytes of an element, of all copies of it; 0 if it lies elsewhere."""
    outputs: tuple[int, ...]
    """The node of each output: an aliased input's, or its own."""
    intervals: tuple[tuple[int, int], ...]
    """When each node is alive."""
    readings: tuple[Reading, ...]
    readings_alike: tuple[int, ...]
    """Per reading the first that needs the same tables."""
