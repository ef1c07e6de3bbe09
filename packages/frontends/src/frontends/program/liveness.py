"""The peak memory of a plan's devices, from the live ranges in its list of instructions.

This does not use the memory that planning predicted. Between instructions, a device holds the
values that were computed or received and are not freed yet. While a chunk runs, its operands stay
until its end, also those that are freed after it. A value that it computes is held until its last
read inside the chunk, or, if it leaves the chunk, until the end. Two kinds of results take no
memory of their own: new state is written over the state that it replaces, if that is donated
(`donate`), and an addend of a sum is added to its total at once.

Not counted is the workspace of an operator or conversion, besides operands and results, and values
that XLA fuses away (`fusion`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from autoshard import Graph, Operator, Value
from shardspec import Layout

from frontends.errors import PlanError
from frontends.plan.plan_fields import Conversion, PlanFields, ShardedOperator, Stored
from frontends.program.instructions import Free, Instruction, Keep, Key, Run, freed_after, makes
from frontends.program.program import LoweredPlan
from frontends.step.fusion import fused_in_apply
from frontends.step.step import APPLY, TrainingStep

ProgramBytes = Callable[[int], int]
"""By index of a chunk, the bytes that its program takes on a device. Operands, totals, and new
state that is written over the old are not included."""


@dataclass(frozen=True, slots=True)
class Peak:
    """Peak memory, and when it occurs."""

    n_bytes: int
    when: str
    """The instruction that runs then."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """The peak memory of a plan, by stage and by device."""

    stages: tuple[Peak, ...]
    """By stage, what it takes on one of its devices."""

    devices: Mapping[frozenset[int], Peak]
    """By the ids of devices that run the same stages: what these stages take together on one."""


def peaks_of(
    program: LoweredPlan, *, donate: bool = True, program_bytes: ProgramBytes | None = None
) -> Peaks:
    """The peak memory of each stage and device in one step of a plan.

    Args:
        program: The lowered plan. Its step may be the one that `step_of` restores from the plan.
        donate: Whether the old state is donated; otherwise it is held until the end of the step.
        program_bytes: What a chunk's program takes, if it is known; by default, live ranges tell.
    """
    walk = _Walk(program, donate, program_bytes)
    for index, item in enumerate(program.instructions):
        walk.do(item, freed_after(program.instructions, index))
    return Peaks(tuple(walk.stages), walk.devices)


def step_of(plan: PlanFields) -> TrainingStep:
    """The step that a plan was made for, put together from the graphs of its stages.

    A plan does not say which of the values that apply reads are sums, and which are the same in all
    microbatches: all count as sums.

    Raises:
        PlanError: The plan keeps no shardings.
    """
    graphs = [stage.sharding.graph for stage in plan.stages if stage.sharding is not None]
    if len(graphs) < len(plan.stages):
        raise PlanError("only a plan that keeps its stages' shardings knows its step: plan again")
    values: dict[str, Value] = {}
    for graph in graphs:
        for value in graph.values:
            is_received = value.role == "activation" and value.name not in graph.producers
            if value.name not in values or not is_received:
                values[value.name] = value
    operators = _in_one_order(graphs)
    phase_of = {name: op.phase for op in operators for name in op.outputs}
    last = len(graphs[0].phases) - 1
    read_last = {name for op in operators if op.phase == last for name in op.inputs}
    summed = [name for name, phase in phase_of.items() if phase < last and name in read_last]
    inputs = [name for name in values if name not in phase_of]
    results = [o for g in graphs for o in g.outputs if o.alias is not None or o.whole]
    graph = Graph(
        graphs[0].phases,
        tuple(values.values()),
        tuple(operators),
        tuple(inputs),
        tuple(results),
    )
    return TrainingStep(
        graph, plan.microbatches, tuple(summed) if plan.microbatches > 1 else (), plan.step
    )


def _in_one_order(graphs: Sequence[Graph]) -> list[Operator]:
    """The operators of all stages, phase by phase, each after those that produce its operands.

    The operators of a stage stay in their order. Such an order exists, as all come from one list.
    """
    computed = {name for graph in graphs for name in graph.producers}
    available: set[str] = set()
    operators: list[Operator] = []
    for phase in range(len(graphs[0].phases)):
        left = [[op for op in graph.operators if op.phase == phase] for graph in graphs]
        position = [0] * len(graphs)
        while any(p < len(ops) for p, ops in zip(position, left, strict=True)):
            before = len(operators)
            for stage, ops in enumerate(left):
                while position[stage] < len(ops):
                    op = ops[position[stage]]
                    if any(name in computed and name not in available for name in op.inputs):
                        break
                    available.update(op.outputs)
                    operators.append(op)
                    position[stage] += 1
            if len(operators) == before:
                raise PlanError("the plan is damaged: its stages wait for each other: plan again")
    return operators


class _Walk:
    """Follows the instructions; knows what is held now, and the peaks so far."""

    def __init__(
        self, program: LoweredPlan, donate: bool, program_bytes: ProgramBytes | None
    ) -> None:
        graph, plan = program.step.graph, program.plan
        self._graph, self._plan, self._chunks = graph, plan, program.chunks
        self._donate, self._program_bytes = donate, program_bytes
        self._operators = {op.name: op for op in graph.operators}
        self._state_of = {o.value: o.alias for o in graph.outputs if o.alias is not None}
        self._state = set(self._state_of.values())
        self._fused = [
            fused_in_apply(graph, {c.value for c in stage.conversions if c.phase == APPLY})
            for stage in plan.stages
        ]
        self._bytes = cache(self._local_bytes)
        self._inside = cache(self._most_inside)
        self._held: dict[Key, int] = {}
        self._group = [frozenset(stage.mesh.device_ids) for stage in plan.stages]
        self.stages = [Peak(0, "the beginning")] * len(plan.stages)
        self.devices = dict.fromkeys(self._group, Peak(0, "the beginning"))
        self._now = [0] * len(plan.stages)
        sent = {(t.destination, t.value) for t in plan.transfers if t.phase == "state"}
        inputs = set(graph.inputs)
        for index, stage in enumerate(plan.stages):
            for slot in stage.inputs:
                is_batch = graph.value(slot.value).role == "batch"
                if slot.value in inputs and not is_batch and (index, slot.value) not in sent:
                    self._add((index, slot, None))
            self._look(index, 0, "the beginning")

    def do(self, item: Instruction, dying: set[Key]) -> None:
        """Account for one instruction, after which the values in `dying` are freed."""
        match item:
            case Run(stage, index, _):
                replaced = frozenset(
                    slot
                    for slot in self._chunks[index].writes
                    if self._donate
                    and (old := self._state_of.get(slot.value)) is not None
                    and (stage, Stored(old, slot.spec), None) in dying
                )
                inside = self._inside(index, replaced)
                self._look(stage, inside, str(item))
                for slot in replaced:
                    self._drop((stage, Stored(self._state_of[slot.value], slot.spec), None))
            case Keep(stage, slots, microbatch):
                for slot in slots:
                    self._drop((stage, slot, microbatch))
            case Free(stage, slots, microbatch):
                for slot in slots:
                    if self._donate or slot.value not in self._state:
                        self._drop((stage, slot, microbatch))
        for key in makes(item, self._plan, self._chunks):
            self._add(key)
        self._look(item.stage, 0, str(item))

    def _look(self, stage: int, inside: int, when: str) -> None:
        """Update the peaks of a stage and its devices; `inside` is what a running chunk takes."""
        of_stage = self._now[stage] + inside
        if of_stage > self.stages[stage].n_bytes:
            self.stages[stage] = Peak(of_stage, when)
        group = self._group[stage]
        total = inside + sum(
            n for n, other in zip(self._now, self._group, strict=True) if other == group
        )
        if total > self.devices[group].n_bytes:
            self.devices[group] = Peak(total, when)

    def _add(self, key: Key) -> None:
        if key not in self._held:
            self._held[key] = self._bytes(key[0], key[1])
            self._now[key[0]] += self._held[key]

    def _drop(self, key: Key) -> None:
        self._now[key[0]] -= self._held.pop(key, 0)

    def _local_bytes(self, stage: int, slot: Stored) -> int:
        value = self._graph.value(slot.value)
        layout = Layout(value.shape, self._plan.stages[stage].mesh, slot.spec)
        return layout.local_bytes(value.itemsize)

    def _most_inside(self, index: int, replaced: frozenset[Stored]) -> int:
        """The peak of the values that a chunk's program computes itself.

        New state that is written over old state, in `replaced`, takes no memory.
        """
        if self._program_bytes is not None:
            return self._program_bytes(index)
        chunk = self._chunks[index]
        steps = [self._reads_and_makes(action) for action in chunk.actions]
        fused, leaving = self._fused[chunk.stage], set(chunk.writes)
        nowhere = replaced.union(
            slot
            for _, produced in steps
            for slot in produced
            if slot.value in fused and slot not in leaving
        )
        produced_at: dict[Stored, int] = {}  # the last time: each phase has its own conversions
        last: dict[tuple[Stored, int], int] = {}
        for at, (read, produced) in enumerate([*steps, (chunk.writes, ())]):
            last.update(((slot, produced_at[slot]), at) for slot in read if slot in produced_at)
            produced_at.update(dict.fromkeys(produced, at))
            last.update(((slot, at), at) for slot in produced)
        dying: dict[int, list[Stored]] = {}
        now = most = 0
        for at, (_, produced) in enumerate(steps):
            for slot in produced:
                if slot not in nowhere:
                    now += self._bytes(chunk.stage, slot)
                    dying.setdefault(last[slot, at], []).append(slot)
            most = max(most, now)
            now -= sum(self._bytes(chunk.stage, slot) for slot in dying.pop(at, ()))
        return most

    def _reads_and_makes(
        self, action: Conversion | ShardedOperator
    ) -> tuple[tuple[Stored, ...], tuple[Stored, ...]]:
        """The slots that an action reads, and those that it produces."""
        if isinstance(action, Conversion):
            return (Stored(action.value, action.src),), (Stored(action.value, action.dst),)
        op = self._operators[action.operator]
        reads = map(Stored, op.inputs, action.operands)
        return tuple(reads), tuple(map(Stored, op.outputs, action.results))
