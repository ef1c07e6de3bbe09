"""What happened in a simulated step: actions that ran, and messages on their way."""

from __future__ import annotations

from dataclasses import dataclass

from pipesched.base.action import Action
from pipesched.base.edge import Edge


@dataclass(frozen=True, slots=True)
class Event:
    """One action as it ran."""

    rank: int
    """Who ran it."""
    action: Action
    """What ran."""
    start_s: float
    """Seconds from the start of the step."""
    stop_s: float
    """Seconds from the start of the step."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One microbatch on its way over an edge, from one rank to another."""

    edge: Edge
    """From where to where."""
    microbatch: int
    """Of which microbatch."""
    start_s: float
    """When the first byte leaves."""
    left_s: float
    """When the last byte has left, and the link is free."""
    stop_s: float
    """When the receiver can use it."""
