"""The events of a simulated step: actions that ran, and messages that were sent."""

from __future__ import annotations

from dataclasses import dataclass

from pipesched.base.action import Action
from pipesched.base.edge import Edge


@dataclass(frozen=True, slots=True)
class Event:
    """One action that ran, and when."""

    rank: int
    """The rank that ran it."""
    action: Action
    """The action."""
    start_s: float
    """Seconds from the start of the step."""
    stop_s: float
    """Seconds from the start of the step."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message: the result of an edge for one microbatch, sent from one rank to another."""

    edge: Edge
    """The edge."""
    microbatch: int
    """The microbatch."""
    start_s: float
    """When the first byte leaves."""
    left_s: float
    """When the last byte has left, and the link is free."""
    stop_s: float
    """When the receiver can use it."""
