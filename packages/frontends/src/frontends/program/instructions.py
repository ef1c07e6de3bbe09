"""Lower a plan to one static list of instructions for each rank (Alpa §6).

pipesched orders computation and communication; this module adds the values to its instructions.
Nothing is decided while a step runs: values are freed after the instruction that uses them last,
and `in_one_order` merges the lists into one order that all processes follow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pipesched

from frontends.errors import DeadlockError
from frontends.plan.plan_fields import PlanFields, Stored, Transfer
from frontends.plan.schedule import copy_at, each_copy
from frontends.program.chunks import Chunk
from frontends.step.step import APPLY, BACKWARD, FORWARD, TrainingStep


@dataclass(frozen=True, slots=True)
class Load:
    """Put one microbatch of an argument on the devices of a stage."""

    stage: int
    slot: Stored
    microbatch: int | None
    """None for a batch that is not cut into microbatches, which apply reads."""

    def __str__(self) -> str:
        return f"LOAD {self.slot.value}.{self.microbatch}"


@dataclass(frozen=True, slots=True)
class Run:
    """Run a chunk."""

    stage: int
    chunk: int
    """Index into the chunks of the plan."""

    microbatch: int | None
    """None in apply, as in the other instructions."""

    def __str__(self) -> str:
        return f"RUN chunk {self.chunk}" + (
            "" if self.microbatch is None else f".{self.microbatch}"
        )


@dataclass(frozen=True, slots=True)
class Send:
    """Send a value to another stage, without waiting until it is received."""

    stage: int
    transfer: int
    """Index into the plan's transfers."""

    microbatch: int | None


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for a value from another stage."""

    stage: int
    transfer: int
    microbatch: int | None


@dataclass(frozen=True, slots=True)
class Zero:
    """Zero the sums over microbatches that a chunk adds to."""

    stage: int
    chunk: int
    microbatch: None = None

    def __str__(self) -> str:
        return f"ZERO chunk {self.chunk}"


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep values of a microbatch until the step ends, as values of the step.

    These are values that apply reads and that are the same in all microbatches, or results of an
    apply that is in one chunk with the only microbatch.
    """

    stage: int
    slots: tuple[Stored, ...]
    microbatch: int


@dataclass(frozen=True, slots=True)
class Free:
    """Free values that nothing reads any more."""

    stage: int
    slots: tuple[Stored, ...]
    microbatch: int | None


Instruction = Load | Zero | Run | Send | Receive | Keep | Free

Key = tuple[int, Stored, int | None]
"""Identifies a value: its stage, its slot there, and its microbatch (None: of the whole step)."""


def build_instructions(
    step: TrainingStep, plan: PlanFields, schedule: pipesched.Schedule, chunks: Sequence[Chunk]
) -> tuple[tuple[Instruction, ...], ...]:
    """By rank of the plan's schedule, its instructions for one step, in order."""
    edges_of = _edges(plan, chunks, schedule)
    edges = dict.fromkeys(edge for edges in edges_of for edge in edges)
    program = pipesched.lower(schedule, edges=tuple(edges))
    binders = [
        _Binder(step, plan, chunks, edges_of[s // schedule.n_stages], s)
        for s in range(len(plan.stages))
    ]
    at = partial(copy_at, schedule)
    results = {output.value for output in step.graph.outputs}
    (rank_of,) = each_copy(schedule).placement.routes
    ranks = []
    for rank, items in enumerate(program.ranks):
        of_rank = [binder for binder in binders if rank_of[binder.stage] == rank]
        instructions = [i for binder in of_rank for i in binder.exchange("state", "source")]
        instructions += [i for binder in of_rank for i in binder.exchange("state", "destination")]
        for item in items:
            instructions += _bind(item, binders, at)
        # Levels of apply may wait for those of any other stage, so stages take turns.
        levels = sorted({chunk.level for binder in of_rank for chunk in binder.apply})
        instructions += [i for level in levels for b in of_rank for i in b.run_apply(level)]
        ranks.append(tuple(_with_frees(instructions, plan, chunks, results)))
    return tuple(ranks)


def in_one_order(
    ranks: Sequence[Sequence[Instruction]], plan: PlanFields
) -> tuple[Instruction, ...]:
    """One order of all ranks' instructions in which each receive comes after its send.

    If every process runs its part of the instructions in this order, none waits for ever: the first
    instruction that is not done waits for nothing.

    Raises:
        DeadlockError: No such order exists; the message says who waits for whom.
    """
    order: list[Instruction] = []
    position = [0] * len(ranks)
    sent: set[tuple[int, int | None]] = set()
    while any(p < len(items) for p, items in zip(position, ranks, strict=True)):
        before = len(order)
        for rank, items in enumerate(ranks):
            while position[rank] < len(items):
                item = items[position[rank]]
                if isinstance(item, Send):
                    sent.add((item.transfer, item.microbatch))
                elif isinstance(item, Receive) and (item.transfer, item.microbatch) not in sent:
                    break
                order.append(item)
                position[rank] += 1
        if len(order) == before:
            stuck = [items[p] for p, items in zip(position, ranks, strict=True) if p < len(items)]
            raise DeadlockError(_who_waits(stuck, plan))
    return tuple(order)


def uses(
    item: Instruction, plan: PlanFields, chunks: Sequence[Chunk]
) -> Iterator[tuple[Stored, bool]]:
    """The slots that an instruction reads, and whether it also removes them.

    Totals are left out: apply reads them after all instructions that add to them.
    """
    match item:
        case Run(_, index, _):
            yield from ((slot, False) for slot in chunks[index].reads)
        case Send(_, index, _):
            transfer = plan.transfers[index]
            yield Stored(transfer.value, transfer.src_spec), False
        case Keep(_, slots, _):
            yield from ((slot, True) for slot in slots)


def makes(item: Instruction, plan: PlanFields, chunks: Sequence[Chunk]) -> Iterator[Key]:
    """The values that an instruction produces."""
    match item:
        case Load(stage, slot, microbatch):
            yield stage, slot, microbatch
        case Run(stage, index, microbatch):
            yield from ((stage, slot, microbatch) for slot in chunks[index].writes)
        case Receive(stage, index, microbatch):
            transfer = plan.transfers[index]
            yield stage, Stored(transfer.value, transfer.dst_spec), microbatch
        case Zero(stage, index, _):
            yield from ((stage, slot, None) for slot in chunks[index].totals)
        case Keep(stage, slots, _):
            yield from ((stage, slot, None) for slot in slots)


def freed_after(order: Sequence[Instruction], index: int) -> set[Key]:
    """The values that are freed directly after an instruction of one order."""
    freed: set[Key] = set()
    for later in order[index + 1 :]:
        if not isinstance(later, Free):
            break
        freed.update((later.stage, slot, later.microbatch) for slot in later.slots)
    return freed


def _with_frees(
    instructions: Sequence[Instruction],
    plan: PlanFields,
    chunks: Sequence[Chunk],
    results: set[str],
) -> Iterator[Instruction]:
    """The instructions, with a `Free` of each value after its last use."""
    live: set[Key] = set()
    last: dict[Key, int] = {}
    for index, item in enumerate(instructions):
        for slot, is_removed in uses(item, plan, chunks):
            key = (item.stage, slot, item.microbatch)
            key = key if key in live else (item.stage, slot, None)
            if is_removed:
                last.pop(key, None)
                live.discard(key)
            else:
                last[key] = index
        for key in makes(item, plan, chunks):
            live.add(key)
            last[key] = index
    freed: dict[tuple[int, int, int | None], list[Stored]] = defaultdict(list)
    for (stage, slot, microbatch), index in last.items():
        if microbatch is not None or slot.value not in results:
            freed[index, stage, microbatch].append(slot)
    after: dict[int, list[Free]] = defaultdict(list)
    for (index, stage, microbatch), slots in freed.items():
        after[index].append(Free(stage, tuple(slots), microbatch))
    for index, item in enumerate(instructions):
        yield item
        yield from after[index]


def _who_waits(stuck: Sequence[Instruction], plan: PlanFields) -> str:
    waits = []
    for item in stuck:
        if isinstance(item, Receive):
            transfer = plan.transfers[item.transfer]
            waits.append(
                f"stage {item.stage} waits for {transfer.value} of microbatch {item.microbatch} "
                f"from stage {transfer.source}"
            )
    return "every receive needs a send before it; " + ", ".join(waits)


def _edges(
    plan: PlanFields, chunks: Sequence[Chunk], schedule: pipesched.Schedule
) -> list[dict[pipesched.Edge, list[int]]]:
    """By route and edge, the indices of the plan's transfers of microbatches."""
    forward_reads = {
        (c.stage, slot.value) for c in chunks if c.phase == FORWARD for slot in c.reads
    }
    kinds = {"forward": pipesched.Kind.FORWARD, "backward": pipesched.Kind.BACKWARD}
    size = schedule.n_stages
    edges_of: list[dict[pipesched.Edge, list[int]]] = [{} for _ in schedule.placement.routes]
    for index, transfer in enumerate(plan.transfers):
        if transfer.phase in kinds:
            in_forward = (transfer.destination, transfer.value) in forward_reads
            to = pipesched.Kind.FORWARD if in_forward else pipesched.Kind.BACKWARD
            src = (kinds[transfer.phase], transfer.source % size)
            edge = pipesched.Edge(src, (to, transfer.destination % size))
            edges_of[transfer.source // size].setdefault(edge, []).append(index)
    return edges_of


def _bind(
    item: pipesched.Instruction,
    binders: Sequence[_Binder],
    at: Callable[[int, int | None], int],
) -> Iterator[Instruction]:
    match item:
        case pipesched.Run(action):
            yield from binders[at(action.stage, action.microbatch)].run(action)
        case pipesched.Send(edge, microbatch, _):
            binder = binders[at(edge.src[1], microbatch)]
            if edge.src[0] not in binder.sent_at_once:
                yield from (Send(binder.stage, i, microbatch) for i in binder.edges.get(edge, ()))
        case pipesched.Receive(edge, microbatch, _):
            binder = binders[at(edge.dst[1], microbatch)]
            yield from (Receive(binder.stage, i, microbatch) for i in binder.edges.get(edge, ()))
        case pipesched.Accumulate(stage, microbatch):
            yield from binders[at(stage, microbatch)].keep(microbatch)
        # Other instructions of pipesched are not needed: values are freed after their last use,
        # collectives on totals are conversions inside apply's chunks, and apply comes last.


class _Binder:
    """Turns pipesched's instructions of one stage into ours, which name values."""

    def __init__(
        self,
        step: TrainingStep,
        plan: PlanFields,
        chunks: Sequence[Chunk],
        edges: dict[pipesched.Edge, list[int]],
        stage: int,
    ) -> None:
        self.plan, self.chunks, self.edges, self.stage = plan, chunks, edges, stage
        self.of_stage = [(i, c) for i, c in enumerate(chunks) if c.stage == stage]
        self.apply = [c for _, c in self.of_stage if c.phase == APPLY]
        self.batch = {v.name for v in step.graph.values if v.role == "batch"}
        apply_reads = {slot for c in self.apply for slot in c.reads}
        self.kept = tuple(
            slot
            for _, c in self.of_stage
            if c.phase != APPLY
            for slot in c.writes
            if APPLY in c.phases or (slot in apply_reads and slot.value not in step.summed)
        )
        has_joined = any(c.phases[:2] == (FORWARD, BACKWARD) for _, c in self.of_stage)
        self.sent_at_once = {pipesched.Kind.BACKWARD} if has_joined else set()
        """Kinds whose results are sent right after forward, as they are computed in its chunk."""

        self.begun: set[int] = set()
        self.loaded: set[tuple[Stored, int]] = set()
        self.whole: set[Stored] = set()
        self.received: set[int] = set()

    def run(self, action: pipesched.Action) -> Iterator[Instruction]:
        """One action: loads of its microbatch, and its chunks."""
        microbatch = action.one_microbatch
        phase = FORWARD if action.kind is pipesched.Kind.FORWARD else BACKWARD
        levels = {
            pipesched.Kind.INPUT_GRADIENT: (0,),
            pipesched.Kind.WEIGHT_GRADIENT: (1,),
        }.get(action.kind, (0, 1))
        for index, chunk in self.of_stage:
            if chunk.phase == phase and chunk.level in levels:
                for slot in chunk.reads:
                    if slot.value in self.batch and (slot, microbatch) not in self.loaded:
                        self.loaded.add((slot, microbatch))
                        yield Load(self.stage, slot, microbatch)
                if chunk.totals and index not in self.begun:
                    self.begun.add(index)
                    yield Zero(self.stage, index)
                yield Run(self.stage, index, microbatch)
                if phase == FORWARD:
                    for edge, transfers in self.edges.items():
                        if edge.src[0] in self.sent_at_once:
                            sent = (i for i in transfers if self._sends(i))
                            yield from (Send(self.stage, i, microbatch) for i in sent)

    def keep(self, microbatch: int) -> Iterator[Keep]:
        """What to keep of a microbatch, after its last gradient."""
        if self.kept:
            yield Keep(self.stage, self.kept, microbatch)

    def run_apply(self, level: int) -> Iterator[Instruction]:
        """A level of apply: receive what it reads, run it, and send its results."""
        for index, chunk in self.of_stage:
            if chunk.phase != APPLY or chunk.level != level:
                continue
            reads = {slot.value for slot in chunk.reads}
            for i, transfer in self._transfers("apply", lambda t: t.destination):
                if transfer.value in reads and i not in self.received:
                    self.received.add(i)
                    yield Receive(self.stage, i, None)
            for slot in chunk.reads:  # a batch that is not cut into microbatches
                if slot.value in self.batch and slot not in self.whole:
                    self.whole.add(slot)
                    yield Load(self.stage, slot, None)
            yield Run(self.stage, index, None)
            writes = {slot.value for slot in chunk.writes}
            for i, transfer in self._transfers("apply", lambda t: t.source):
                if transfer.value in writes:
                    yield Send(self.stage, i, None)

    def exchange(self, phase: str, end: str) -> Iterator[Instruction]:
        """Send or receive all values of a phase."""
        if end == "source":
            sent = self._transfers(phase, lambda t: t.source)
            yield from (Send(self.stage, i, None) for i, _ in sent)
        else:
            received = self._transfers(phase, lambda t: t.destination)
            yield from (Receive(self.stage, i, None) for i, _ in received)

    def _sends(self, transfer: int) -> bool:
        return self.plan.transfers[transfer].source == self.stage

    def _transfers(self, phase: str, end: Callable[[Transfer], int]) -> list[tuple[int, Transfer]]:
        return [
            (i, t)
            for i, t in enumerate(self.plan.transfers)
            if t.phase == phase and end(t) == self.stage
        ]
