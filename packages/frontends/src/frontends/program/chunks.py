"""Cut a planned step into stage programs, the chunks: per stage forward, backward, parts of apply.

A chunk is a list of conversions and operators without branches. It reads and writes *slots*: a slot
is a value in one layout. A conversion runs where it is first needed, and all later operators of the
same phase share its result.

Apply is cut into levels if stages depend on each other in it, as in clipping by the global norm:
every stage sums its squares (level 0), one stage adds them up and sends the factor back, and all
stages continue with it. An operator runs on the latest level that its readers allow, so that most
stages have one level only.

If the schedule splits backward, backward has two levels. Level 0 is the input gradient, on which
other stages' backwards depend; level 1 is the weight gradient, which contributes to sums over
microbatches only.

The addends of a sum over microbatches are never stored: a chunk adds each to the total at once.

If a stage's backward always follows its forward at once, as on the last stage of 1F1B, both are one
chunk; with one stage and one microbatch, apply is in it, too. Then values that nothing else reads
are not stored between them, and one program is dispatched instead of three.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from autoshard import Graph, Operator
from pipesched import Kind, Schedule

from frontends.errors import PlanError
from frontends.layers.split_backward import levels_of, sent_backwards
from frontends.plan.plan_fields import Conversion, PlanFields, ShardedOperator, Stage, Stored
from frontends.plan.schedule import each_copy, split_stages
from frontends.step.step import APPLY, BACKWARD, FORWARD, PHASE_NAMES, TrainingStep


@dataclass(frozen=True, slots=True)
class Chunk:
    """A program of one stage, run once a microbatch or once a step."""

    stage: int
    phases: tuple[int, ...]
    """In the order in which they run; more than one if they always follow each other at once."""

    level: int
    """0 in forward, and in a backward that is not split."""

    actions: tuple[Conversion | ShardedOperator, ...]
    reads: tuple[Stored, ...]
    """The slots that it reads. State that apply updates comes first, in the order of `writes`."""

    writes: tuple[Stored, ...]
    """The slots that it writes. New state comes first, in the layout of the state it replaces."""

    totals: tuple[Stored, ...]
    """Sums over microbatches that the chunk adds to; they are not in `reads` and `writes`."""

    @property
    def phase(self) -> int:
        """The phase at whose place in the schedule the chunk runs: the first one."""
        return self.phases[0]

    def __str__(self) -> str:
        level = f".{self.level}" if self.level else ""
        names = " and ".join(PHASE_NAMES[phase] for phase in self.phases)
        return f"{names}{level} of stage {self.stage}"


def stages_of_operators(plan: PlanFields) -> dict[str, int]:
    """By operator, the stage that runs it."""
    return {
        placement.operator: index
        for index, stage in enumerate(plan.stages)
        for placement in stage.placements
    }


def build_chunks(step: TrainingStep, plan: PlanFields, schedule: Schedule) -> tuple[Chunk, ...]:
    """The chunks of all stages, in the order stage, phase, level.

    Args:
        step: The step that the plan is for.
        plan: Says where operators run, and in which layouts.
        schedule: The schedule of the plan.

    Raises:
        PlanError: The plan places other operators than the graph has.
    """
    graph, stage_of = step.graph, stages_of_operators(plan)
    if set(stage_of) != {op.name for op in graph.operators}:
        raise PlanError("the plan was made for another step: it places other operators; plan again")
    schedule = each_copy(schedule)
    split = split_stages(schedule)
    levels = levels_of_apply(graph, stage_of)
    chunks: list[Chunk] = []
    for index, stage in enumerate(plan.stages):
        operators = [op for op in graph.operators if stage_of[op.name] == index]
        if index in split:
            levels.update(levels_of(operators, sent_backwards(plan.transfers, index)))
        joined: tuple[int, ...] = ()
        if _follows_at_once(schedule, index) and not _waits(operators, plan, index):
            is_whole = len(plan.stages) == plan.microbatches == 1 and index not in split
            joined = (FORWARD, BACKWARD, APPLY) if is_whole else (FORWARD, BACKWARD)
        builder = _StageBuilder(graph, step.summed, index, stage, operators, levels, joined)
        chunks.extend(builder.build())
    return tuple(chunks)


def levels_of_apply(graph: Graph, stage_of: Mapping[str, int]) -> dict[str, int]:
    """By operator of apply, its level: the latest one that its readers allow."""
    apply = [op for op in graph.operators if op.phase == APPLY]
    producer = {name: op.name for op in apply for name in op.outputs}
    earliest: dict[str, int] = {}
    for op in apply:
        producers = [producer[name] for name in op.inputs if name in producer]
        levels = [earliest[p] + (stage_of[p] != stage_of[op.name]) for p in producers]
        earliest[op.name] = max(levels, default=0)
    last: dict[int, int] = defaultdict(int)
    for op in apply:
        last[stage_of[op.name]] = max(last[stage_of[op.name]], earliest[op.name])
    latest = {op.name: last[stage_of[op.name]] for op in apply}
    for op in reversed(apply):
        for name in op.inputs:
            if name in producer:
                other = producer[name]
                gap = stage_of[other] != stage_of[op.name]
                latest[other] = min(latest[other], latest[op.name] - gap)
    return latest


def _follows_at_once(schedule: Schedule, stage: int) -> bool:
    """Whether a stage runs nothing between a microbatch's forward and its backward."""
    backwards = Kind.BACKWARD, Kind.INPUT_GRADIENT
    actions = [
        action
        for rank in schedule.ranks
        for action in rank
        if action.stage == stage and action.kind in (Kind.FORWARD, Kind.WEIGHT_GRADIENT, *backwards)
    ]
    return all(
        after.kind in backwards and after.microbatch == action.microbatch
        for action, after in pairwise(actions)
        if action.kind is Kind.FORWARD
    )


def _waits(operators: Sequence[Operator], plan: PlanFields, stage: int) -> bool:
    """Whether a stage's backward receives a value that its forward does not read."""
    read = {name for op in operators if op.phase == FORWARD for name in op.inputs}
    return any(
        t.destination == stage and t.phase in ("forward", "backward") and t.value not in read
        for t in plan.transfers
    )


class _StageBuilder:
    """Builds the chunks of one stage; puts conversions where they are first needed."""

    def __init__(
        self,
        graph: Graph,
        summed: Collection[str],
        index: int,
        stage: Stage,
        operators: Sequence[Operator],
        levels: Mapping[str, int],
        joined: tuple[int, ...],
    ) -> None:
        self.graph, self.summed, self.index, self.stage = graph, summed, index, stage
        self.placement = {p.operator: p for p in stage.placements}
        self.conversion = {(c.phase, c.value, c.dst): c for c in stage.conversions}
        self.home = {stored.value: stored.spec for stored in stage.inputs}
        self.groups: dict[tuple[tuple[int, ...], int], list[Operator]] = {}
        """By phases and level of a chunk, its operators."""

        for op in operators:
            level = levels.get(op.name, 0)
            phases = joined if op.phase in joined and level == 0 else (op.phase,)
            self.groups.setdefault((phases, level), []).append(op)
            for name, spec in zip(op.outputs, self.placement[op.name].results, strict=True):
                self.home[name] = spec
        self.outputs: dict[str, list[Stored]] = defaultdict(list)
        for stored in stage.outputs:
            self.outputs[stored.value].append(stored)
        self.update_of = {
            Stored(output.value, self.home[output.alias]): Stored(
                output.alias, self.home[output.alias]
            )
            for output in graph.outputs
            if output.alias in self.home and output.value in self.home
        }
        """By new state, the old state that it replaces."""

    def build(self) -> list[Chunk]:
        """The chunks; each writes the slots that later chunks read or that leave the stage."""
        drafts = []
        converted: dict[int, set[Stored]] = defaultdict(set)
        for phases, level in sorted(self.groups):
            drafts.append((phases, level, *self._draft(self.groups[phases, level], converted)))
        read_later: set[Stored] = set(self.stage.outputs)
        totalled: set[Stored] = set()
        chunks: list[Chunk] = []
        for phases, level, actions, reads, produced in reversed(drafts):
            if APPLY in phases:
                sums = (slot for slot in reads if slot.value in self.summed)
                totalled.update(slot for slot in sums if slot.spec == self.home[slot.value])
                reads, produced = self._paired(reads, produced)
            totals = tuple(slot for slot in produced if slot in totalled and APPLY not in phases)
            writes = tuple(slot for slot in produced if slot in read_later)
            chunks.insert(0, Chunk(self.index, phases, level, actions, reads, writes, totals))
            read_later.update(slot for slot in reads if slot not in totalled or APPLY not in phases)
        return chunks

    def _paired(
        self, reads: Sequence[Stored], produced: Sequence[Stored]
    ) -> tuple[tuple[Stored, ...], tuple[Stored, ...]]:
        """Reads and results, reordered: old state first in one, new state first in the other.

        Both are in the same order, as JAX reuses the memory of the first donated operand of a shape
        for the first result of that shape. If these are not a pair, XLA copies.
        """
        available = set(reads)
        pairs = {old: new for new in produced if (old := self.update_of.get(new)) in available}
        updates = set(pairs.values())
        rest = [slot for slot in reads if slot not in pairs]
        others = [slot for slot in produced if slot not in updates]
        return (*pairs, *rest), (*pairs.values(), *others)

    def _draft(
        self, operators: Sequence[Operator], converted: dict[int, set[Stored]]
    ) -> tuple[tuple[Conversion | ShardedOperator, ...], tuple[Stored, ...], tuple[Stored, ...]]:
        """The actions of a chunk, the slots that it reads, and those that it produces.

        Adds the slots that it converts to `converted`, by phase.
        """
        actions: list[Conversion | ShardedOperator] = []
        produced: dict[Stored, None] = {}
        reads: dict[Stored, None] = {}

        def need(slot: Stored, phase: int) -> None:
            if slot.spec == self.home[slot.value] or slot in converted[phase]:
                if slot not in produced:
                    reads[slot] = None
                return
            conversion = self.conversion.get((phase, slot.value, slot.spec))
            if conversion is None:
                raise PlanError(
                    f"a plan must convert every value to the layouts that are read; stage "
                    f"{self.index} has no conversion of {slot.value} to {slot.spec} in "
                    f"{PHASE_NAMES[phase]}: plan again"
                )
            need(Stored(slot.value, conversion.src), phase)
            actions.append(conversion)
            produced[slot] = None
            converted[phase].add(slot)

        for op in operators:
            placement = self.placement[op.name]
            for name, spec in zip(op.inputs, placement.operands, strict=True):
                need(Stored(name, spec), op.phase)
            actions.append(placement)
            for name, spec in zip(op.outputs, placement.results, strict=True):
                produced[Stored(name, spec)] = None
            for name in op.outputs:
                for stored in self.outputs.get(name, ()):
                    need(stored, op.phase)
        return tuple(actions), tuple(reads), tuple(produced)
