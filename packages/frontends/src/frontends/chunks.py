"""Cut a planned step into the programs that run: per stage forward, backward and parts of apply.

A chunk is a straight list of conversions and operators. What it reads and writes are *slots*: a
value in one layout. A conversion is made where it is first needed and then shared by all that
follow in the same phase.

Apply is cut into levels where stages depend on each other, as under clipping by the global norm:
every stage sums its squares (level 0), one stage adds them up and sends the factor back, and all
stages go on with it. An operator runs on the latest level that its readers allow, so that most
stages have one level only.

Where the schedule splits backward, it has two levels: 0 is the input gradient, all that other
stages' backwards wait for; 1 is the weight gradient, what leads to sums over microbatches only.

A sum over microbatches is never there once a microbatch: a chunk adds its part to the total.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from autoshard import Graph, Operator

from frontends.errors import PlanError
from frontends.plan import Conversion, Placement, Plan, Stage, Stored
from frontends.schedule import schedule_of, split_stages
from frontends.step import APPLY, BACKWARD, PHASE_NAMES, Step


@dataclass(frozen=True, slots=True)
class Chunk:
    """A program of one stage, run once a microbatch or once a step."""

    stage: int
    phase: int
    level: int
    """0 in forward and in a backward that is whole."""

    actions: tuple[Conversion | Placement, ...]
    reads: tuple[Stored, ...]
    """State that apply updates first, in the order of its updates."""

    writes: tuple[Stored, ...]
    """Updates first; each has the layout of the state that it replaces."""

    totals: tuple[Stored, ...]
    """Sums over microbatches that the chunk adds to what it makes; no part of reads and writes."""

    def __str__(self) -> str:
        level = f".{self.level}" if self.level else ""
        return f"{PHASE_NAMES[self.phase]}{level} of stage {self.stage}"


def stages_of_operators(plan: Plan) -> dict[str, int]:
    """The stage that runs each operator."""
    return {
        placement.operator: index
        for index, stage in enumerate(plan.stages)
        for placement in stage.placements
    }


def build_chunks(step: Step, plan: Plan) -> tuple[Chunk, ...]:
    """The chunks of all stages, in the order stage, phase, level.

    Raises:
        PlanError: The plan places other operators than the graph has, or its schedule cannot run.
    """
    graph, stage_of = step.graph, stages_of_operators(plan)
    if set(stage_of) != {op.name for op in graph.operators}:
        raise PlanError("the plan was made for another step: it places other operators; plan again")
    levels = _levels(graph, stage_of) | _gradient_levels(graph, plan, stage_of)
    chunks: list[Chunk] = []
    for index, stage in enumerate(plan.stages):
        operators = [op for op in graph.operators if stage_of[op.name] == index]
        builder = _StageBuilder(graph, step.summed, index, stage, operators, levels)
        chunks.extend(builder.build())
    return tuple(chunks)


def _levels(graph: Graph, stage_of: Mapping[str, int]) -> dict[str, int]:
    """The level of every operator of apply: as late as its readers allow."""
    apply = [op for op in graph.operators if op.phase == APPLY]
    maker = {name: op.name for op in apply for name in op.outputs}
    earliest: dict[str, int] = {}
    for op in apply:
        makers = [maker[name] for name in op.inputs if name in maker]
        steps = [earliest[m] + (stage_of[m] != stage_of[op.name]) for m in makers]
        earliest[op.name] = max(steps, default=0)
    last: dict[int, int] = defaultdict(int)
    for op in apply:
        last[stage_of[op.name]] = max(last[stage_of[op.name]], earliest[op.name])
    latest = {op.name: last[stage_of[op.name]] for op in apply}
    for op in reversed(apply):
        for name in op.inputs:
            if name in maker:
                other = maker[name]
                gap = stage_of[other] != stage_of[op.name]
                latest[other] = min(latest[other], latest[op.name] - gap)
    return latest


def _gradient_levels(graph: Graph, plan: Plan, stage_of: Mapping[str, int]) -> dict[str, int]:
    """0 for operators of split backwards that another stage's backward needs, 1 for the rest."""
    split = split_stages(schedule_of(plan))
    needed = {(t.source, t.value) for t in plan.transfers if t.phase == "backward"}
    levels = {}
    for op in reversed(graph.operators):
        stage = stage_of[op.name]
        if op.phase == BACKWARD and stage in split:
            levels[op.name] = int(needed.isdisjoint((stage, name) for name in op.outputs))
            if levels[op.name] == 0:
                needed.update((stage, name) for name in op.inputs)
    return levels


class _StageBuilder:
    """Walks one stage's operators in order and places conversions where they are first needed."""

    def __init__(
        self,
        graph: Graph,
        summed: Collection[str],
        index: int,
        stage: Stage,
        operators: Sequence[Operator],
        levels: Mapping[str, int],
    ) -> None:
        self.graph, self.summed, self.index, self.stage = graph, summed, index, stage
        self.placement = {p.operator: p for p in stage.placements}
        self.conversion = {(c.phase, c.value, c.dst): c for c in stage.conversions}
        self.home = {stored.value: stored.spec for stored in stage.inputs}
        self.groups: dict[tuple[int, int], list[Operator]] = {}
        for op in operators:
            level = levels.get(op.name, 0)
            self.groups.setdefault((op.phase, level), []).append(op)
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
        """The state that an update replaces."""

    def build(self) -> list[Chunk]:
        """The chunks; each writes what later ones and the outside read."""
        drafts = []
        converted: dict[int, set[Stored]] = defaultdict(set)
        for phase, level in sorted(self.groups):
            drafts.append((phase, level, *self._draft(phase, level, converted[phase])))
        read_later: set[Stored] = set(self.stage.outputs)
        totalled: set[Stored] = set()
        chunks: list[Chunk] = []
        for phase, level, actions, reads, made in reversed(drafts):
            if phase == APPLY:
                sums = (slot for slot in reads if slot.value in self.summed)
                totalled.update(slot for slot in sums if slot.spec == self.home[slot.value])
                reads, made = self._paired(reads, made)
            totals = tuple(slot for slot in made if slot in totalled and phase != APPLY)
            writes = tuple(slot for slot in made if slot in read_later)
            chunks.insert(0, Chunk(self.index, phase, level, actions, reads, writes, totals))
            read_later.update(slot for slot in reads if slot not in totalled or phase != APPLY)
        return chunks

    def _paired(
        self, reads: Sequence[Stored], made: Sequence[Stored]
    ) -> tuple[tuple[Stored, ...], tuple[Stored, ...]]:
        """Reads and results, the state that is updated and its updates first and in one order.

        JAX writes the first result over the first operand of that shape that is given away. Where
        these are not a pair, XLA copies.
        """
        there = set(reads)
        pairs = {old: new for new in made if (old := self.update_of.get(new)) in there}
        updates = set(pairs.values())
        rest = [slot for slot in reads if slot not in pairs]
        others = [slot for slot in made if slot not in updates]
        return (*pairs, *rest), (*pairs.values(), *others)

    def _draft(
        self, phase: int, level: int, converted: set[Stored]
    ) -> tuple[tuple[Conversion | Placement, ...], tuple[Stored, ...], tuple[Stored, ...]]:
        actions: list[Conversion | Placement] = []
        made: dict[Stored, None] = {}
        reads: dict[Stored, None] = {}

        def need(slot: Stored) -> None:
            if slot in made:
                return
            if slot.spec == self.home[slot.value] or slot in converted:
                reads[slot] = None
                return
            conversion = self.conversion.get((phase, slot.value, slot.spec))
            if conversion is None:
                raise PlanError(
                    f"the plan must bring every value into the layout that is read; stage "
                    f"{self.index} has no way to {slot.value} as {slot.spec} in "
                    f"{PHASE_NAMES[phase]}: plan again"
                )
            need(Stored(slot.value, conversion.src))
            actions.append(conversion)
            made[slot] = None
            converted.add(slot)

        for op in self.groups[phase, level]:
            placement = self.placement[op.name]
            for name, spec in zip(op.inputs, placement.operands, strict=True):
                need(Stored(name, spec))
            actions.append(placement)
            for name, spec in zip(op.outputs, placement.results, strict=True):
                made[Stored(name, spec)] = None
            for name in op.outputs:
                for stored in self.outputs.get(name, ()):
                    need(stored)
        return tuple(actions), tuple(reads), tuple(made)
