"""The pipeline of a plan as data for the script of its page: blocks, sends, and what is inside.

Times are integers of a unit, a millionth of the step, so that pages of long steps stay small.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pipesched

from frontends.errors import PlanError
from frontends.layers.expand import operator_seconds
from frontends.layers.split_backward import WEIGHT_GRADIENT, levels_of, sent_backwards
from frontends.plan.plan_fields import PlanFields, Stage
from frontends.plan.schedule import copy_at
from frontends.program.predict import timeline_of
from frontends.report.numbered import Numbered
from frontends.report.svg_charts import ACTION_COLOURS, COLLECTIVE_COLOURS
from frontends.step.step import APPLY, BACKWARD, FORWARD

UNITS = 1_000_000
"""Units of time in a step."""

MOST_BLOCKS = 40_000
"""Of a pipeline with more blocks, those at its start and at its end are on the page."""

_FINEST = 1_000
"""Operators of less than this part of their phase are shown together."""

_COMPUTE = ("compute", "#c6dbef")
_APPLY = ("apply", "#bdbdbd")
_SENT_ONCE = ("sent once a step", "#d8b365")
_OTHER_COLOUR = "#cccccc"

_Run = tuple[tuple[str, int, float], ...]
"""Names, kinds (0 is compute, the others are collectives) and seconds, in order of execution."""


@dataclass(frozen=True, slots=True)
class _Block:
    """One thing that a rank does; without a stage or a microbatch, these are -1."""

    rank: int
    kind: tuple[str, str]
    """Name and colour."""

    stage: int
    microbatch: int
    start_s: float
    length_s: float
    run: _Run
    """What runs inside."""


def timeline_data(plan: PlanFields, names: Numbered[str]) -> Any:
    """Blocks and sends by rank, or None if the schedule cannot be simulated."""
    try:
        timeline = timeline_of(plan)
    except (PlanError, pipesched.PipeschedError):
        return None
    unit = max(plan.step_s, timeline.makespan_s) / UNITS
    if not unit > 0:
        return None
    start_s, stop_s = left_out = _left_out(timeline)
    kinds: Numbered[tuple[str, str]] = Numbered()
    blocks: Numbered[tuple[int, int, int, int]] = Numbered()
    insides: Numbered[tuple[tuple[int, int, float], ...]] = Numbered()
    ranks: list[list[int]] = [[] for _ in timeline.schedule.ranks]
    last = [0] * len(ranks)
    for block in _blocks(plan, timeline):
        if start_s < block.start_s < stop_s:
            continue
        run = tuple((names[name], kind, seconds) for name, kind, seconds in block.run)
        start, length = round(block.start_s / unit), round(block.length_s / unit)
        which = blocks[kinds[block.kind], block.stage, length, insides[run] if run else -1]
        ranks[block.rank] += (which, block.microbatch, start - last[block.rank])
        last[block.rank] = start + length
    rank_of = {(e.action.stage, e.action.microbatch): e.rank for e in timeline.events}
    sends = [
        (
            rank_of[sent.edge.src[1], sent.microbatch],
            rank_of[sent.edge.dst[1], sent.microbatch],
            sent.microbatch,
            round(sent.start_s / unit),
            round((sent.stop_s - sent.start_s) / unit),
        )
        for sent in timeline.transfers
        if not start_s < sent.start_s < stop_s
    ]
    return {
        "unit": unit,
        "end": UNITS,
        "kinds": [*kinds],
        "blocks": [*blocks],
        "ranks": ranks,
        "sends": sends,
        "leftOut": [round(moment / unit) for moment in left_out],
        "insides": [*insides],
        "parts": [_COMPUTE, *COLLECTIVE_COLOURS.items()],
    }


def _left_out(timeline: pipesched.Timeline) -> tuple[float, float]:
    """The time whose blocks are not on the page; none if there is room for all."""
    number = len(timeline.events)
    if number <= MOST_BLOCKS:
        return 0.0, 0.0
    part = timeline.makespan_s * MOST_BLOCKS / 2 / number
    return part, timeline.makespan_s - part


def _blocks(plan: PlanFields, timeline: pipesched.Timeline) -> Iterator[_Block]:
    """The blocks of each rank in order: the pipeline, and what a plan's step has after it."""
    schedule = timeline.schedule
    parts = [_inside(plan, index) for index in range(len(plan.stages))]
    for event in timeline.events:
        action = event.action
        if action.edge is None:
            stage = copy_at(schedule, action.stage, action.microbatch)
            kind = ACTION_COLOURS.get(action.kind, (str(action.kind), _OTHER_COLOUR))
            number = -1 if action.microbatch is None else action.microbatch
            run = parts[stage].get(action.kind, ())
            length_s = event.stop_s - event.start_s
            yield _Block(event.rank, kind, stage, number, event.start_s, length_s, run)
    done_s = timeline.makespan_s
    for rank, actions in enumerate(schedule.ranks):
        at_s = timeline.makespan_s
        for stage in sorted({copy_at(schedule, a.stage, a.microbatch) for a in actions}):
            if length_s := plan.stages[stage].apply_s:
                run = _run_of(plan.stages[stage], APPLY)
                yield _Block(rank, _APPLY, stage, -1, at_s, length_s, run)
                at_s += length_s
        done_s = max(done_s, at_s)
    # State and updates that other stages read, all ranks at a time.
    once_s = plan.step_s - plan.first_pass_s - done_s
    if plan.transfers and once_s > plan.step_s / UNITS:
        for rank in range(len(schedule.ranks)):
            yield _Block(rank, _SENT_ONCE, -1, -1, done_s, once_s, ())


def _inside(plan: PlanFields, index: int) -> dict[pipesched.Kind, _Run]:
    """What runs inside the blocks of a stage."""
    stage = plan.stages[index]
    if stage.sharding is None:
        return {}
    runs = {
        pipesched.Kind.FORWARD: _run_of(stage, FORWARD),
        pipesched.Kind.BACKWARD: _run_of(stage, BACKWARD),
    }
    levels = levels_of(stage.sharding.graph.operators, sent_backwards(plan.transfers, index))
    later = {name for name, level in levels.items() if level == WEIGHT_GRADIENT}
    runs[pipesched.Kind.WEIGHT_GRADIENT] = _run_of(stage, BACKWARD, later)
    runs[pipesched.Kind.INPUT_GRADIENT] = _run_of(stage, BACKWARD, {*levels} - later)
    return runs


def _run_of(stage: Stage, phase: int, only: set[str] | None = None) -> _Run:
    """The operators and collectives of a phase, or some of them, the shortest ones together."""
    if stage.sharding is None:
        return ()
    graph, mesh = stage.sharding.graph, stage.sharding.mesh
    device = stage.sharding.cluster.slowest(mesh)
    waiting: dict[str, list[tuple[str, int, float]]] = defaultdict(list)
    kinds = [*COLLECTIVE_COLOURS]
    for c in stage.collectives:
        if c.phase == phase:
            kind = 1 + kinds.index(c.kind) if c.kind in kinds else 1
            waiting[c.value].append((c.value, kind, c.time_s))
    found: list[tuple[str, int, float]] = []
    for op, strategy in zip(graph.operators, stage.sharding.strategies, strict=True):
        if op.phase == phase and (only is None or op.name in only):
            for name in op.inputs:  # what was made in the phase is sent as soon as it is there
                found += waiting.pop(name, ())
            found.append((op.name, 0, operator_seconds(graph, op, strategy, mesh.shape, device)))
            for name in op.outputs:
                found += waiting.pop(name, ())
    if only is None:
        found += (each for rest in waiting.values() for each in rest)
    return tuple(_together(found))


def _together(found: Sequence[tuple[str, int, float]]) -> Iterator[tuple[str, int, float]]:
    """Operators too short to be seen, joined to one part."""
    least = sum(seconds for *_, seconds in found) / _FINEST
    number, sum_s, alone = 0, 0.0, ""

    def joined() -> Iterator[tuple[str, int, float]]:
        if sum_s > 0:
            yield alone if number == 1 else f"{number} short operators", 0, _short(sum_s)

    for name, kind, seconds in found:
        if kind == 0 and seconds < least:
            number, sum_s, alone = number + 1, sum_s + seconds, name
            continue
        yield from joined()
        number, sum_s = 0, 0.0
        yield name, kind, _short(seconds)
    yield from joined()


def _short(seconds: float) -> float:
    return float(f"{seconds:.3g}")
