"""The data of a stage plan: its stages in pipeline order, and the rivals they were chosen over."""

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
    """Another plan that was considered, with its time or the reason why it cannot run."""

    kind: str
    """`stages` (the best slicing with another number of them), `equal layers`, `manual`, ...;
    `neighbour` for a plan that differs from the chosen one in one change."""
    name: str
    """Which of its kind, such as `5 stages` or `layer 3 to stage 1`."""
    spans: tuple[Span, ...]
    """Its stages; empty if there is no such slicing."""
    time_s: float | None
    """Time of a step; None if it cannot run."""
    reason: str = ""
    """Why it cannot run."""
    is_bound: bool = False
    """Whether `time_s` is only a lower bound. It is longer than the plan already, so the search did
    not price the remaining stages."""
    changes: tuple[int, ...] = ()
    """For a neighbour, the stages of the chosen plan that it changes."""

    def against(self, time_s: float, spans: tuple[Span, ...] = ()) -> str:
        """How it compares with a plan that has these stages and takes `time_s`, as text."""
        if self.time_s is None:
            return self.reason
        if self.spans == spans and self.time_s == time_s:
            return "this plan"
        at_least = "at least " if self.is_bound else ""
        return f"{at_least}{seconds_text(self.time_s)}, {phrases.more(self.time_s, time_s)}"


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage of a plan: a run of layers, the devices that run it, and its cost."""

    first: int
    last: int
    """Included."""
    submesh: Submesh
    devices: tuple[tuple[int, ...], ...]
    """Device ids, one row for each host."""
    cost: StageCost
    received_s: float
    """Seconds to receive the values of a microbatch, and to send back their gradients; part of
    `time_s`."""
    in_flight: int
    """The most microbatches that it holds between their forward and backward."""
    held_bytes: int = 0
    """For each of them, the bytes that a device holds for stages after the next one."""

    def __post_init__(self) -> None:
        hosts, devices = self.submesh
        rows_fit = len(self.devices) == hosts and {*map(len, self.devices)} <= {devices}
        holds = is_count(self.in_flight) and is_amount(self.held_bytes)
        if not (holds and is_amount(self.received_s) and rows_fit):
            raise InvalidInputError(
                "a stage holds at least one microbatch, has times and sizes that are finite and "
                f"not negative, and the devices of its submesh; got in_flight={self.in_flight}, "
                f"received_s={self.received_s}, held_bytes={self.held_bytes}, "
                f"devices={self.devices} for {tuple(self.submesh)}"
            )

    @property
    def span(self) -> Span:
        """First layer, last layer and submesh: the arguments of the cost function."""
        return self.first, self.last, self.submesh

    @property
    def time_s(self) -> float:
        """Time of one microbatch, forward and backward, with receiving."""
        return self.cost.time_s + self.received_s

    @property
    def peak_bytes(self) -> int:
        """Peak memory of a device."""
        return self.cost.peak_bytes(self.in_flight) + self.in_flight * self.held_bytes


@dataclass(frozen=True)
class StagePlanFields:
    """The fields of a `StagePlan`, which adds methods to print, draw and write them.

    Raises:
        InvalidInputError: The stages are not runs of layers in order, the schedule is unknown, or a
            number is out of its range.
    """

    title: str
    """What the plan is for, in words for people."""
    n_microbatches: int
    """Microbatches of a step."""
    schedule: str
    """One of `SCHEDULES`."""
    memory_bytes: int | None
    """Memory of a device; None if there is no limit."""
    stages: tuple[PlannedStage, ...]
    time_s: float
    """Time of a step."""
    lower_bound_s: float
    """No slicing takes less."""
    n_priced: int
    """How many stages the search priced."""
    rivals: tuple[Rival, ...]
    """The plans that this one was compared with."""

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
                "a plan has at least one microbatch, and numbers that are finite and not negative; "
                f"got n_microbatches={self.n_microbatches}, n_priced={self.n_priced}, "
                f"memory_bytes={self.memory_bytes}, time_s={self.time_s}"
            )

    @property
    def spans(self) -> tuple[Span, ...]:
        """First layer, last layer and submesh of each stage."""
        return tuple(stage.span for stage in self.stages)

    @property
    def idle(self) -> tuple[float, ...]:
        """For each stage, the share of the step in which its devices are idle, by Alpa's Eq. 2."""
        if not self.time_s:
            return (0.0,) * len(self.stages)
        busy_s = [self.n_microbatches * each.cost.time_s + each.cost.once_s for each in self.stages]
        return tuple(max(1 - each / self.time_s, 0.0) for each in busy_s)
