"""When everything of a schedule happens, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipesched.action import Action
from pipesched.edge import Edge
from pipesched.errors import ArgumentError
from pipesched.kind import Kind
from pipesched.schedule import Schedule


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
    """One microbatch on its way over an edge."""

    edge: Edge
    """From where to where."""
    microbatch: int
    """Of which microbatch."""
    start_s: float
    """When the first byte leaves."""
    stop_s: float
    """When the receiver can use it."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """A simulated step.

    All figures are of the schedule's pipeline part: what follows the last backward (reducing
    gradients, applying them) is not in it.
    """

    schedule: Schedule
    """What ran."""
    events: tuple[Event, ...]
    """By rank, then by time."""
    transfers: tuple[Transfer, ...]
    """By time of start; ties in the order of the sending ranks."""

    @property
    def makespan_s(self) -> float:
        """Until the last action stops."""
        return max(event.stop_s for event in self.events)

    @property
    def bubble_s(self) -> tuple[float, ...]:
        """Per rank, the time in which it computes nothing."""
        makespan_s = self.makespan_s
        idle = [makespan_s] * len(self.schedule.ranks)
        for event in self.events:
            idle[event.rank] -= event.stop_s - event.start_s
        return tuple(idle)

    @property
    def bubble_ratio(self) -> float:
        """The part of all ranks' time in which they compute nothing; 0.0 if nothing takes time.

        Not to be confused with the idle part over the *busy* part, which some papers report.
        """
        total_s = self.makespan_s * len(self.schedule.ranks)
        return sum(self.bubble_s) / total_s if total_s else 0.0

    @property
    def peak_in_flight(self) -> tuple[int, ...]:
        """Per rank, the most microbatches whose activations it holds at once.

        A rank with several stages counts a microbatch once for each.
        """
        ones = [1] * self.schedule.n_stages
        return tuple(max((held for _, held in curve), default=0) for curve in self.memory(ones))

    def memory(self, activation_bytes: Sequence[int]) -> tuple[tuple[tuple[float, int], ...], ...]:
        """Bytes of activations that each rank holds, over time.

        A forward takes its stage's bytes when it starts; the backward of the same microbatch gives
        them back when it stops.

        Args:
            activation_bytes: Per stage, what one microbatch keeps from forward to backward.

        Returns:
            Per rank, (time in seconds, bytes from then on) for each change, in order. At one
            time, what stops comes before what starts.

        Raises:
            ArgumentError: Not one number for each stage.
        """
        if len(activation_bytes) != self.schedule.n_stages:
            raise ArgumentError(
                "activation_bytes has one entry for each stage; "
                f"got {len(activation_bytes)} for n_stages={self.schedule.n_stages}"
            )
        curves: list[list[tuple[float, int]]] = [[] for _ in self.schedule.ranks]
        for event in self.events:
            curve = curves[event.rank]
            held = curve[-1][1] if curve else 0
            n_bytes = activation_bytes[event.action.stage]
            if event.action.kind is Kind.FORWARD:
                curve.append((event.start_s, held + n_bytes))
            else:
                curve.append((event.stop_s, held - n_bytes))
        return tuple(map(tuple, curves))
