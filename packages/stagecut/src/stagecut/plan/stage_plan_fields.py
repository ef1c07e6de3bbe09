"""Stages in pipeline order, and what they were chosen over, as values."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from shardspec.amounts import seconds_text

from stagecut.base.checks import is_amount, is_count
from stagecut.base.held_microbatches import SCHEDULES
from stagecut.base.types import Span, StageCost, Submesh
from stagecut.errors import InvalidInputError
from stagecut.slice import phrases


@dataclass(frozen=True, slots=True)
class Rival:
    """Another plan that was considered, and what speaks against it."""

    kind: str
    """`stages` (another number of them), `equal layers`, `manual`, ...; `neighbour` for a plan that
    differs from the chosen one in one thing."""
    name: str
    """Which of its kind, such as `5 stages` or `layer 3 to stage 1`."""
    spans: tuple[Span, ...]
    """Its stages; none if there are no such stages."""
    time_s: float | None
    """Of a step; None if it cannot run."""
    reason: str = ""
    """Why it cannot run."""
    is_bound: bool = False
    """It takes at least `time_s`; nobody asked for the rest, as that is too long already."""
    changes: tuple[int, ...] = ()
    """The stages of the chosen plan that a neighbour changes."""

    def against(self, time_s: float, spans: tuple[Span, ...] = ()) -> str:
        """What speaks against it, beside a plan with these stages that takes `time_s`."""
        if self.time_s is None:
            return self.reason
        if self.spans == spans and self.time_s == time_s:
            return "this plan"
        at_least = "at least " if self.is_bound else ""
        return f"{at_least}{seconds_text(self.time_s)}, {phrases.more(self.time_s, time_s)}"


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A run of layers, where it runs and what it costs there."""

    first: int
    last: int
    """Included."""
    submesh: Submesh
    devices: tuple[tuple[int, ...], ...]
    """One row for each host."""
    cost: StageCost
    received_s: float
    """To bring it a microbatch's values, and back their gradients; part of `time_s`."""
    in_flight: int
    """Microbatches it holds at most between their forward and backward."""
    held_bytes: int = 0
    """Of each of them, what a device keeps for stages after the next one."""

    def __post_init__(self) -> None:
        rows_fit = [len(row) for row in self.devices] == [self.submesh[1]] * self.submesh[0]
        holds = is_count(self.in_flight) and is_amount(self.held_bytes)
        if not (holds and is_amount(self.received_s) and rows_fit):
            raise InvalidInputError(
                "a stage holds a microbatch, receives in no negative time, and has the devices of "
                f"its submesh; got in_flight={self.in_flight}, received_s={self.received_s}, "
                f"held_bytes={self.held_bytes}, "
                f"devices={self.devices} for {tuple(self.submesh)}"
            )

    @property
    def span(self) -> Span:
        """As costs are asked for."""
        return self.first, self.last, self.submesh

    @property
    def time_s(self) -> float:
        """Of one microbatch, forward and backward."""
        return self.cost.time_s + self.received_s

    @property
    def peak_bytes(self) -> int:
        """Of a device."""
        return self.cost.peak_bytes(self.in_flight) + self.in_flight * self.held_bytes


@dataclass(frozen=True)
class StagePlanFields:
    """The fields of a `StagePlan`, which adds what is done with them.

    Raises:
        InvalidInputError: Its stages are not runs of layers in order, its schedule is unknown, or a
            number is out of its range.
    """

    title: str
    """What is planned, for people."""
    n_microbatches: int
    """Of a step."""
    schedule: str
    """One of `SCHEDULES`."""
    memory_bytes: int | None
    """Of a device; None if there is no limit."""
    stages: tuple[PlannedStage, ...]
    time_s: float
    """Of a step."""
    lower_bound_s: float
    """No slicing takes less."""
    n_priced: int
    """How many stages the search asked a price of."""
    rivals: tuple[Rival, ...]

    def __post_init__(self) -> None:
        starts = [stage.first for stage in self.stages]
        ends = [0, *(stage.last + 1 for stage in self.stages)]
        if starts != ends[:-1] or any(a >= b for a, b in pairwise(ends)) or len(ends) < 2:
            spans = [(stage.first, stage.last) for stage in self.stages]
            raise InvalidInputError(
                f"the stages of a plan are runs of layers in order, from layer 0 on; got {spans}"
            )
        if self.schedule not in SCHEDULES:
            raise InvalidInputError(
                f"a schedule is one of {', '.join(SCHEDULES)}; got {self.schedule!r}"
            )
        rest = self.n_priced, self.time_s, 0 if self.memory_bytes is None else self.memory_bytes
        if not (is_count(self.n_microbatches) and all(map(is_amount, rest))):
            raise InvalidInputError(
                "a plan has a microbatch, and nothing that is negative; got "
                f"n_microbatches={self.n_microbatches}, n_priced={self.n_priced}, "
                f"memory_bytes={self.memory_bytes}, time_s={self.time_s}"
            )

    @property
    def spans(self) -> tuple[Span, ...]:
        """First layer, last layer and submesh of each stage."""
        return tuple(stage.span for stage in self.stages)

    @property
    def idle(self) -> tuple[float, ...]:
        """What part of the step each stage's devices compute nothing, by Alpa's Eq. 2."""
        if not self.time_s:
            return (0.0,) * len(self.stages)
        busy_s = [self.n_microbatches * each.cost.time_s + each.cost.once_s for each in self.stages]
        return tuple(max(1 - each / self.time_s, 0.0) for each in busy_s)
