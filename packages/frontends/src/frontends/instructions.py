"""From a plan to one static list of instructions for each stage (Alpa §6).

pipesched orders computation and communication; here its instructions get the values that they are
about. Nothing is decided while a step runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pipesched

from frontends.chunks import Chunk
from frontends.plan import Plan, Stored, Transfer
from frontends.step import APPLY, BACKWARD, FORWARD, Step


@dataclass(frozen=True, slots=True)
class Load:
    """Place one microbatch of an argument on the stage's mesh."""

    slot: Stored
    microbatch: int

    def __str__(self) -> str:
        return f"LOAD {self.slot.value}.{self.microbatch}"


@dataclass(frozen=True, slots=True)
class Run:
    """Run a chunk."""

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

    transfer: int
    """Index into the plan's transfers."""

    microbatch: int | None


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for a value from another stage."""

    transfer: int
    microbatch: int | None


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Add the microbatch's gradients and losses to the totals; keep what else apply reads."""

    summed: tuple[Stored, ...]
    kept: tuple[Stored, ...]
    microbatch: int


@dataclass(frozen=True, slots=True)
class Free:
    """Drop values that nothing reads any more."""

    slots: tuple[Stored, ...]
    microbatch: int | None


Instruction = Load | Run | Send | Receive | Accumulate | Free


def build_instructions(
    step: Step, plan: Plan, chunks: Sequence[Chunk]
) -> tuple[tuple[Instruction, ...], ...]:
    """For each stage, all that it does in one step, in order."""
    by_key = {(c.stage, c.phase, c.level): i for i, c in enumerate(chunks)}
    edges = _edges(plan, chunks)
    schedule = pipesched.make(plan.schedule, len(plan.stages), plan.microbatches)
    program = pipesched.lower(schedule, edges=tuple(edges))
    return tuple(
        tuple(_Binder(step, plan, chunks, by_key, edges, stage).bind(program.ranks[stage]))
        for stage in range(len(plan.stages))
    )


def _edges(plan: Plan, chunks: Sequence[Chunk]) -> dict[pipesched.Edge, list[int]]:
    """The plan's transfers of microbatches, by the edge of the pipeline that they travel on."""
    forward_reads = {
        (c.stage, slot.value) for c in chunks if c.phase == FORWARD for slot in c.reads
    }
    kinds = {"forward": pipesched.Kind.FORWARD, "backward": pipesched.Kind.BACKWARD}
    edges: dict[pipesched.Edge, list[int]] = defaultdict(list)
    for index, transfer in enumerate(plan.transfers):
        if transfer.phase in kinds:
            in_forward = (transfer.destination, transfer.value) in forward_reads
            to = pipesched.Kind.FORWARD if in_forward else pipesched.Kind.BACKWARD
            src = (kinds[transfer.phase], transfer.source)
            edges[pipesched.Edge(src, (to, transfer.destination))].append(index)
    return edges


class _Binder:
    """Gives the instructions of one stage their values."""

    def __init__(
        self,
        step: Step,
        plan: Plan,
        chunks: Sequence[Chunk],
        by_key: dict[tuple[int, int, int], int],
        edges: dict[pipesched.Edge, list[int]],
        stage: int,
    ) -> None:
        self.plan, self.chunks, self.by_key, self.edges = plan, chunks, by_key, edges
        self.stage = stage
        mine = [c for c in chunks if c.stage == stage]
        self.apply = [c for c in mine if c.phase == APPLY]
        graph = step.graph
        self.batch = {v.name for v in graph.values if v.role == "batch"}
        self.reads = {
            phase: {slot for c in mine if c.phase == phase for slot in c.reads}
            for phase in (FORWARD, BACKWARD, APPLY)
        }
        self.made = {
            phase: [slot for c in mine if c.phase == phase for slot in c.writes]
            for phase in (FORWARD, BACKWARD)
        }
        carried = [s for phase in (FORWARD, BACKWARD) for s in self.made[phase]]
        carried = [slot for slot in carried if slot in self.reads[APPLY]]
        self.summed = tuple(slot for slot in carried if slot.value in step.summed)
        self.kept = tuple(slot for slot in carried if slot.value not in step.summed)

    def bind(self, program: Sequence[pipesched.Instruction]) -> Iterator[Instruction]:
        """The stage's own list."""
        yield from self._exchange("state")
        for item in program:
            match item:
                case pipesched.Run(action):
                    yield from self._run(action)
                case pipesched.Send(edge, microbatch, _):
                    yield from (Send(index, microbatch) for index in self.edges[edge])
                case pipesched.Receive(edge, microbatch, _):
                    yield from (Receive(index, microbatch) for index in self.edges[edge])
                case pipesched.Free(pipesched.Saved(_, _, microbatch)):
                    yield from self._free_saved(microbatch)
                case pipesched.Free(pipesched.Received(edge, microbatch)):
                    yield from self._free_received(edge, microbatch)
                case pipesched.Accumulate(_, microbatch):
                    yield Accumulate(self.summed, self.kept, microbatch)
                case pipesched.Reduce(_):
                    pass  # the collectives on totals are conversions inside apply's chunks
                case pipesched.Apply(_):
                    yield from self._run_apply()

    def _run(self, action: pipesched.Action) -> Iterator[Instruction]:
        microbatch = action.microbatch
        assert microbatch is not None, "what runs is of one microbatch"
        phase = FORWARD if action.kind is pipesched.Kind.FORWARD else BACKWARD
        key = (self.stage, phase, 0)
        if key not in self.by_key:
            return
        loaded = self.reads[FORWARD] if phase == BACKWARD else set()
        for slot in self.chunks[self.by_key[key]].reads:
            if slot.value in self.batch and slot not in loaded:
                yield Load(slot, microbatch)
        yield Run(self.by_key[key], microbatch)
        if phase == FORWARD:
            loads = [s for s in self.chunks[self.by_key[key]].reads if s.value in self.batch]
            unused = tuple(s for s in loads if s not in self.reads[BACKWARD])
            if unused:
                yield Free(unused, microbatch)

    def _free_saved(self, microbatch: int) -> Iterator[Instruction]:
        """After backward everything of the microbatch goes, except what is accumulated next."""
        carried = {*self.summed, *self.kept}
        received = [self._slot(i) for edge in self.edges for i in self._arriving(edge)]
        loads = [s for s in sorted(self.reads[BACKWARD], key=str) if s.value in self.batch]
        gone = [s for s in (*self.made[FORWARD], *self.made[BACKWARD]) if s not in carried]
        gone += [s for s in received if s in self.reads[BACKWARD]] + loads
        if gone:
            yield Free(tuple(dict.fromkeys(gone)), microbatch)

    def _free_received(self, edge: pipesched.Edge, microbatch: int) -> Iterator[Instruction]:
        """What backward reads again is freed with the rest of the microbatch."""
        slots = (self._slot(index) for index in self._arriving(edge))
        gone = tuple(slot for slot in slots if slot not in self.reads[BACKWARD])
        if gone:
            yield Free(gone, microbatch)

    def _arriving(self, edge: pipesched.Edge) -> list[int]:
        return self.edges[edge] if edge.dst[1] == self.stage else []

    def _slot(self, index: int) -> Stored:
        transfer = self.plan.transfers[index]
        return Stored(transfer.value, transfer.dst_spec)

    def _run_apply(self) -> Iterator[Instruction]:
        """Each level receives what it reads, runs, and sends what it made."""
        incoming = self._transfers("apply", lambda t: t.destination)
        for chunk in self.apply:
            reads = {slot.value for slot in chunk.reads}
            yield from (Receive(i, None) for i, t in incoming if t.value in reads)
            incoming = [(i, t) for i, t in incoming if t.value not in reads]
            yield Run(self.by_key[self.stage, APPLY, chunk.level], None)
            writes = {slot.value for slot in chunk.writes}
            outgoing = self._transfers("apply", lambda t: t.source)
            yield from (Send(i, None) for i, t in outgoing if t.value in writes)

    def _exchange(self, phase: str) -> Iterator[Instruction]:
        yield from (Send(i, None) for i, _ in self._transfers(phase, lambda t: t.source))
        yield from (Receive(i, None) for i, _ in self._transfers(phase, lambda t: t.destination))

    def _transfers(self, phase: str, end: Callable[[Transfer], int]) -> list[tuple[int, Transfer]]:
        return [
            (i, t)
            for i, t in enumerate(self.plan.transfers)
            if t.phase == phase and end(t) == self.stage
        ]
