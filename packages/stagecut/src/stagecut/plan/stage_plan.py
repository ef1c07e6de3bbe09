"""`StagePlan`: the best slicing with its devices and schedule, and the rivals it was chosen over.

A `StagePlan` prints as a table, explains each stage, draws itself, and is written to JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike

from shardspec.amounts import bytes_text, columns, count_text, seconds_text, share_text

from stagecut.base.checks import is_count
from stagecut.errors import InvalidInputError
from stagecut.plan import plan_json
from stagecut.plan.picture import picture
from stagecut.plan.stage_plan_fields import Rival, StagePlanFields
from stagecut.plan.text import draw
from stagecut.slice import phrases

_SHOWN = 3
"""How many rivals of each kind the table shows: the best ones."""


@dataclass(frozen=True)
class StagePlan(StagePlanFields):
    """Stages in pipeline order, and the rivals they were chosen over. `plan_stages` makes one.

    Raises:
        InvalidInputError: The stages are not runs of layers in order, the schedule is unknown, or a
            number is out of its range.
    """

    def __str__(self) -> str:
        n_devices = sum(n * m for n, m in (stage.submesh for stage in self.stages))
        gap = self.time_s - self.lower_bound_s
        bound = (
            "no slicing takes less" if gap <= 0 else f"at least {seconds_text(self.lower_bound_s)}"
        )
        lines = [
            *([self.title] if self.title else []),
            f"{count_text(len(self.stages), 'stage')} on "
            f"{count_text(n_devices, 'device')}, "
            f"{count_text(self.n_microbatches, 'microbatch')}, {self.schedule}",
            f"{seconds_text(self.time_s)} a step, {bound}; "
            f"{count_text(self.n_priced, 'stage')} priced",
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
                phrases.layers(stage.first, stage.last),
                phrases.shape(stage.submesh),
                _option(stage.cost.option),
                seconds_text(stage.time_s),
                _memory(stage.peak_bytes, self.memory_bytes),
                share_text(idle, 1),
            ]
            for number, (stage, idle) in enumerate(zip(self.stages, self.idle, strict=True))
        ]
        if not has_options:
            rows = [[*row[:3], *row[4:]] for row in rows]
        last = len(rows[0]) - 1
        return columns(rows, right=(0, last - 2, last - 1, last))

    def _rivals_shown(self) -> list[str]:
        rows = []
        kinds = dict.fromkeys(r.kind for r in self.rivals if r.kind != "neighbour")
        for kind in kinds:
            rivals = sorted((r for r in self.rivals if r.kind == kind), key=_rank)
            rows += [[r.name, r.against(self.time_s, self.spans)] for r in rivals[:_SHOWN]]
        return columns([["instead", "a step"], *rows]) if rows else []

    def draw(self, *, width: int = 72, ascii: bool = False) -> str:
        """The timeline and the memory of each stage, to be printed in a terminal.

        The arguments are those of `stagecut.plan.text.draw`.
        """
        return draw(self, width=width, ascii=ascii)

    def picture(self, path: str | PathLike[str]) -> None:
        """Write the timeline and the memory of each stage to a PNG or SVG file.

        The argument and the errors are those of `stagecut.plan.picture.picture`.
        """
        picture(self, path)

    def to_json(self) -> str:
        """The plan as JSON, which `from_json` reads back to an equal plan.

        Raises:
            RecordError: The option of a stage is not a value that JSON can hold.
        """
        return plan_json.write(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> StagePlan:
        """Read a plan that `to_json` wrote.

        Raises:
            RecordError: The text is not a stage plan of this version; the message names the wrong
                entry.
        """
        return plan_json.read(cls, text)

    def explain(self, stage: int) -> str:
        """Why a stage has these layers and devices: the effect of each change to it.

        The first change is the runner-up: the fastest of all slicings that differ from the plan in
        one change at this stage.

        Args:
            stage: Counted from 0.

        Raises:
            InvalidInputError: There is no such stage.
        """
        if not is_count(stage, least=0) or stage >= len(self.stages):
            raise InvalidInputError(
                f"stages are counted from 0 to {len(self.stages) - 1}; got stage={stage!r}"
            )
        planned, cost = self.stages[stage], self.stages[stage].cost
        slowest_s, slowest = max((other.time_s, -n) for n, other in enumerate(self.stages))
        pace = (
            "no stage is slower: each further microbatch adds this time to the step"
            if planned.time_s == slowest_s
            else f"the slowest is stage {-slowest} with {seconds_text(slowest_s)}"
        )
        option = "" if cost.option is None else f", option {_option(cost.option)}"
        lines = [
            f"stage {stage}: layers {phrases.layers(planned.first, planned.last)} on "
            f"{phrases.shape(planned.submesh)}, {_devices(planned.devices)}{option}",
            f"  {seconds_text(planned.time_s)} a microbatch; {pace}",
        ]
        if planned.received_s:
            received = seconds_text(planned.received_s)
            lines.append(f"  {received} of it to receive values and to send back their gradients")
        if cost.once_s:
            lines.append(f"  and {seconds_text(cost.once_s)} once a step")
        lines += [
            f"  idle {share_text(self.idle[stage], 1)} of the step",
            f"  {_memory(planned.peak_bytes, self.memory_bytes)} a device: "
            f"{bytes_text(cost.fixed_bytes)} fixed, {planned.in_flight} x "
            f"{bytes_text(cost.activation_bytes + planned.held_bytes)} in flight, "
            f"{bytes_text(cost.temporary_bytes)} temporary",
        ]
        near = sorted((rival for rival in self.rivals if stage in rival.changes), key=_rank)
        rows = [[f"  {rival.name}", rival.against(self.time_s)] for rival in near]
        if rows:
            lines += columns([["  instead", "a step"], *rows])
        return "\n".join(lines)


def _rank(rival: Rival) -> tuple[bool, float]:
    return rival.time_s is None, rival.time_s or 0.0


def _memory(peak: int, limit: int | None) -> str:
    return bytes_text(peak) if limit is None else phrases.of(peak, limit)


def _option(option: object) -> str:
    """A logical mesh as `2x4`, and anything else by its `str`."""
    if isinstance(option, tuple) and option and all(isinstance(n, int) for n in option):
        return phrases.shape(option)
    return "" if option is None else str(option)


def _devices(rows: Sequence[Sequence[int]]) -> str:
    """`device 4`, or `devices 0-3, 8-11`."""
    name = "device" if len(rows) == len(rows[0]) == 1 else "devices"
    return f"{name} {', '.join(phrases.layers(row[0], row[-1]) for row in rows)}"
