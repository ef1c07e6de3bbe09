"""What a planner shows: the best slicing with devices and schedule, and what it was chosen over.

A `StagePlan` is data only: it prints as a table, explains each stage, draws itself, and is JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike

from stagecut import record, words
from stagecut.amounts import is_amount, is_count
from stagecut.draw import draw
from stagecut.errors import InvalidInputError
from stagecut.picture import picture
from stagecut.plan import Span, StageCost, Submesh
from stagecut.schedule import SCHEDULES

_SHOWN = 3
"""Rivals of a kind that the table has: the best ones."""


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
        return f"{at_least}{words.seconds(self.time_s)}, {words.more(self.time_s, time_s)}"


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
class StagePlan:
    """Stages in pipeline order, and what they were chosen over. `plan_stages` makes one.

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

    def __str__(self) -> str:
        n_devices = sum(n * m for n, m in (stage.submesh for stage in self.stages))
        gap = self.time_s - self.lower_bound_s
        bound = (
            "no slicing takes less" if gap <= 0 else f"at least {words.seconds(self.lower_bound_s)}"
        )
        lines = [
            *([self.title] if self.title else []),
            f"{words.count(len(self.stages), 'stage')} on "
            f"{words.count(n_devices, 'device')}, "
            f"{words.count(self.n_microbatches, 'microbatch')}, {self.schedule}",
            f"{words.seconds(self.time_s)} a step, {bound}; "
            f"{words.count(self.n_priced, 'stage')} priced",
            "",
            *self._table(),
        ]
        if rivals := self._rivals_shown():
            lines += ["", *rivals]
        return "\n".join(lines)

    def _table(self) -> list[str]:
        has_options = any(stage.cost.option is not None for stage in self.stages)
        header = ["stage", "layers", "submesh", "option", "a microbatch", "memory", "idle"]
        rows = [header] + [
            [
                str(number),
                words.layers(stage.first, stage.last),
                words.shape(stage.submesh),
                _option(stage.cost.option),
                words.seconds(stage.time_s),
                _memory(stage.peak_bytes, self.memory_bytes),
                words.share(idle, 1),
            ]
            for number, (stage, idle) in enumerate(zip(self.stages, self.idle, strict=True))
        ]
        if not has_options:
            rows = [[*row[:3], *row[4:]] for row in rows]
        last = len(rows[0]) - 1
        return words.table(rows, right=(0, last - 2, last - 1, last))

    def _rivals_shown(self) -> list[str]:
        rows = []
        kinds = dict.fromkeys(r.kind for r in self.rivals if r.kind != "neighbour")
        for kind in kinds:
            rivals = sorted((r for r in self.rivals if r.kind == kind), key=_rank)
            rows += [[r.name, r.against(self.time_s, self.spans)] for r in rivals[:_SHOWN]]
        return words.table([["instead", "a step"], *rows]) if rows else []

    def draw(self, *, width: int = 72, ascii: bool = False) -> str:
        """Timeline and memory for a terminal, as `stagecut.draw` says."""
        return draw(self, width=width, ascii=ascii)

    def picture(self, path: str | PathLike[str]) -> None:
        """Timeline and memory as a file, as `stagecut.picture` says."""
        picture(self, path)

    def to_json(self) -> str:
        """A text that `from_json` reads back to an equal plan.

        Raises:
            RecordError: The option of a stage is none that JSON can keep.
        """
        return record.write(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> StagePlan:
        """Read what `to_json` wrote.

        Raises:
            RecordError: The text is no stage plan, or not one of this version; says which entry.
        """
        return record.read(cls, text)

    def explain(self, stage: int) -> str:
        """Why a stage has these layers and devices: what each change of it would do.

        The first change is the runner-up: of all slicings that differ from the plan in one boundary
        of this stage, the fastest.

        Args:
            stage: Counted from 0.

        Raises:
            InvalidInputError: There is no such stage.
        """
        if not is_count(stage, least=0) or stage >= len(self.stages):
            raise InvalidInputError(
                f"stages are counted from 0 to {len(self.stages) - 1}; got stage={stage!r}"
            )
        it, cost = self.stages[stage], self.stages[stage].cost
        slowest_s, slowest = max((other.time_s, -n) for n, other in enumerate(self.stages))
        pace = (
            "no stage is slower: each further microbatch takes the step as long"
            if it.time_s == slowest_s
            else f"the slowest is stage {-slowest} with {words.seconds(slowest_s)}"
        )
        option = "" if cost.option is None else f", option {_option(cost.option)}"
        lines = [
            f"stage {stage}: layers {words.layers(it.first, it.last)} on "
            f"{words.shape(it.submesh)}, {_devices(it.devices)}{option}",
            f"  {words.seconds(it.time_s)} a microbatch; {pace}",
        ]
        if it.received_s:
            lines.append(f"  of that {words.seconds(it.received_s)} to receive, and to send back")
        if cost.once_s:
            lines.append(f"  and {words.seconds(cost.once_s)} once a step")
        lines += [
            f"  idle {words.share(self.idle[stage], 1)} of the step",
            f"  {_memory(it.peak_bytes, self.memory_bytes)} a device: "
            f"{words.gib(cost.fixed_bytes)} fixed, {it.in_flight} x "
            f"{words.gib(cost.activation_bytes + it.held_bytes)} in flight, "
            f"{words.gib(cost.temporary_bytes)} for a moment",
        ]
        near = sorted((rival for rival in self.rivals if stage in rival.changes), key=_rank)
        rows = [[f"  {rival.name}", rival.against(self.time_s)] for rival in near]
        if rows:
            lines += words.table([["  instead", "a step"], *rows])
        return "\n".join(lines)


def _rank(rival: Rival) -> tuple[bool, float]:
    return rival.time_s is None, rival.time_s or 0.0


def _memory(peak: int, limit: int | None) -> str:
    return words.gib(peak) if limit is None else words.of(peak, limit)


def _option(option: object) -> str:
    """A logical mesh as `2x4`, anything else as it is."""
    if isinstance(option, tuple) and option and all(isinstance(n, int) for n in option):
        return words.shape(option)
    return "" if option is None else str(option)


def _devices(rows: Sequence[Sequence[int]]) -> str:
    """`device 4`, or `devices 0-3, 8-11`."""
    name = "device" if len(rows) == len(rows[0]) == 1 else "devices"
    return f"{name} {', '.join(words.layers(row[0], row[-1]) for row in rows)}"
