"""Timelines: when each action of a schedule runs, with idle times and memory."""

from __future__ import annotations

from dataclasses import dataclass

from pipesched.base.event import Event, Transfer
from pipesched.base.kind import Kind
from pipesched.schedule.costs import Costs
from pipesched.schedule.schedule import Schedule
from pipesched.simulation.memory import Held, memory_of


@dataclass(frozen=True, slots=True)
class Timeline:
    """A simulated step."""

    schedule: Schedule
    """The schedule that ran."""
    costs: Costs
    """The costs that it was simulated with."""
    events: tuple[Event, ...]
    """The actions that ran, by rank, and in the order of the rank's list, which is by time."""
    transfers: tuple[Transfer, ...]
    """The messages, by start; ties by the rank of the sender."""

    @property
    def makespan_s(self) -> float:
        """The time until the last action stops."""
        return max(event.stop_s for event in self.events)

    @property
    def busy_s(self) -> tuple[float, ...]:
        """For each rank, the time in which it computes."""
        busy = [0.0] * len(self.schedule.ranks)
        for event in self.events:
            if event.action.edge is None:
                busy[event.rank] += event.stop_s - event.start_s
        return tuple(busy)

    @property
    def bubble_s(self) -> tuple[float, ...]:
        """For each rank, the time of the step in which it does not compute."""
        makespan_s = self.makespan_s
        return tuple(makespan_s - busy_s for busy_s in self.busy_s)

    @property
    def bubble_ratio(self) -> float:
        """The share of all ranks' time in which they do not compute; 0.0 if nothing takes time.

        Some papers instead report the idle time over the *busy* time.
        """
        total_s = self.makespan_s * len(self.schedule.ranks)
        return sum(self.bubble_s) / total_s if total_s else 0.0

    @property
    def span_bubble_ratio(self) -> float:
        """The bubble ratio of the time from each rank's first start to its last stop only.

        This matters if work of other steps can fill the time before and after.
        """
        starts: dict[int, float] = {}
        stops: dict[int, float] = {}
        for event in self.events:
            if event.action.edge is None:
                starts.setdefault(event.rank, event.start_s)
                stops[event.rank] = event.stop_s
        total_s = sum(stops[rank] - starts[rank] for rank in starts)
        return 1.0 - sum(self.busy_s) / total_s if total_s else 0.0

    @property
    def peak_in_flight(self) -> tuple[int, ...]:
        """For each rank, the most microbatches whose activations it holds at once.

        A microbatch counts from the start of the forward to the end of the backward or input
        gradient, and once for each stage of the rank. Without backwards, forwards keep nothing, so
        at most one counts at a time.
        """
        if not self.schedule.backward:
            return tuple(int(bool(actions)) for actions in self.schedule.ranks)
        return self._peak_count(Kind.FORWARD, (Kind.BACKWARD, Kind.INPUT_GRADIENT))

    @property
    def peak_weight_gradients(self) -> tuple[int, ...]:
        """For each rank, the most weight gradients that are delayed at once.

        A weight gradient is delayed from its input gradient until it runs.
        """
        return self._peak_count(Kind.INPUT_GRADIENT, (Kind.WEIGHT_GRADIENT,))

    def _peak_count(self, first: Kind, last: tuple[Kind, ...]) -> tuple[int, ...]:
        peaks = []
        for actions in self.schedule.ranks:
            held = peak = 0
            for action in actions:
                if action.kind is first:
                    held += 1
                    peak = max(peak, held)
                elif action.kind in last:
                    held -= 1
            peaks.append(peak)
        return tuple(peaks)

    def memory(self) -> tuple[tuple[Held, ...], ...]:
        """For each rank, the bytes that it holds at time 0 and after each change, in order."""
        return memory_of(self.schedule, self.costs, self.events, self.transfers)

    @property
    def peak_bytes(self) -> tuple[float, ...]:
        """For each rank, the most bytes that it holds at once."""
        return tuple(max(held.total_bytes for held in curve) for curve in self.memory())
