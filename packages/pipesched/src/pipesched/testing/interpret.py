"""Runs a program on symbols instead of tensors; shares no code with `pipesched.lower`."""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from functools import cache

from pipesched.base.action import Action
from pipesched.base.edge import Edge
from pipesched.base.kind import Kind
from pipesched.schedule.program import (
    Accumulate,
    Apply,
    Buffer,
    Free,
    Program,
    Receive,
    Received,
    Reduce,
    Run,
    Saved,
    Send,
)

Gradients = tuple[tuple[str, ...], ...]
"""For each stage, the gradients of its microbatches, sorted."""


def interpret(program: Program) -> Gradients:
    """Run a program on symbols, with rules as strict as those of any runtime.

    A result is a hash of the action and of everything that it used. The result of an input gradient
    is that of the whole backward, and the weight gradient passes it on. A rank keeps only the
    result of its last run. The messages of an edge arrive in order, and sending never waits.

    Returns:
        The gradients that were applied, equally by every copy of a stage; compare them with
        `expected_gradients`. For inference, the results of the forwards instead.

    Raises:
        AssertionError: The program uses something that is not there, does not free a buffer or
            receive a message, or deadlocks.
    """
    return _Run(program).result()


def expected_gradients(
    n_stages: int, n_microbatches: int, edges: tuple[Edge, ...], *, backward: bool = True
) -> Gradients:
    """The result that `interpret` must return, computed recursively, without a schedule."""

    @cache
    def value(kind: Kind, stage: int, microbatch: int) -> str:
        used = [value(*edge.src, microbatch) for edge in edges if edge.dst == (kind, stage)]
        if kind is Kind.BACKWARD:
            used.append(value(Kind.FORWARD, stage, microbatch))
        return _digest(Action(kind, stage, microbatch), *used)

    kind = Kind.BACKWARD if backward else Kind.FORWARD
    return tuple(
        tuple(sorted(value(kind, stage, m) for m in range(n_microbatches)))
        for stage in range(n_stages)
    )


class _Run:
    """The state of all ranks."""

    def __init__(self, program: Program) -> None:
        self.program = program
        n_ranks = len(program.ranks)
        self.buffers: list[dict[Buffer, str]] = [{} for _ in range(n_ranks)]
        self.results: list[tuple[Action, str] | None] = [None] * n_ranks
        self.streams: defaultdict[tuple[Edge, int, int], deque[tuple[int, str]]]
        self.streams = defaultdict(deque)
        self.gradients: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
        self.reducing: set[tuple[int, int]] = set()  # rank and stage, as in gradients
        self.applied: set[tuple[int, int]] = set()
        self.recomputed = {
            (item.action.stage, item.action.microbatch)
            for items in program.ranks
            for item in items
            if isinstance(item, Run) and item.action.kind is Kind.RECOMPUTE
        }

    def result(self) -> Gradients:
        program = self.program
        heads = [0] * len(program.ranks)
        ends = [len(instructions) for instructions in program.ranks]
        while heads != ends:
            before = list(heads)
            for rank in range(len(heads)):
                while heads[rank] < ends[rank] and self.execute(rank, heads[rank]):
                    heads[rank] += 1
            assert heads != before, f"deadlock at {heads}"
        assert not any(self.buffers), f"never freed: {self.buffers}"
        assert not any(self.streams.values()), "sent, but never received"
        if program.backward:
            copies = {(r, s) for s in range(program.n_stages) for r in self.copies(s)}
            assert self.applied == copies, f"applied only {sorted(self.applied)}"
        return tuple(self.total(stage) for stage in range(program.n_stages))

    def copies(self, stage: int) -> tuple[int, ...]:
        return self.program.placement.ranks_of(stage)

    def total(self, stage: int) -> tuple[str, ...]:
        """The gradients of all copies of a stage, sorted."""
        return tuple(sorted(g for rank in self.copies(stage) for g in self.gradients[rank, stage]))

    def execute(self, rank: int, position: int) -> bool:
        """Execute one instruction; False if it has to wait."""
        buffers = self.buffers[rank]
        match self.program.ranks[rank][position]:
            case Run(action):
                self.run(rank, action)
            case Send(edge, microbatch, peer):
                value = self.result_of(rank, edge.src, microbatch)
                self.streams[edge, rank, peer].append((microbatch, value))
            case Receive(edge, microbatch, peer):
                stream = self.streams[edge, peer, rank]
                if not stream:
                    return False
                sent_microbatch, value = stream.popleft()
                assert sent_microbatch == microbatch, f"{edge}: got {sent_microbatch} out of order"
                self.keep(rank, Received(edge, microbatch), value)
            case Free(buffer):
                assert buffer in buffers, f"{buffer} is freed, but is not there"
                del buffers[buffer]
            case Accumulate(stage, microbatch):
                value = self.result_of(rank, (Kind.WEIGHT_GRADIENT, stage), microbatch)
                self.gradients[rank, stage].append(value)
            case Reduce(stage):
                self.reducing.add((rank, stage))
                if not all((copy, stage) in self.reducing for copy in self.copies(stage)):
                    return False
                n_gradients = len(self.total(stage))
                assert n_gradients == self.program.n_microbatches, f"{stage} reduces too early"
            case Apply(stage):
                assert (rank, stage) in self.reducing, f"{stage} is applied before it is reduced"
                assert (rank, stage) not in self.applied, f"{stage} is applied twice"
                self.applied.add((rank, stage))
        return True

    def run(self, rank: int, action: Action) -> None:
        kind, stage, microbatch = action.kind, action.stage, action.microbatch
        assert microbatch is not None
        again = (stage, microbatch) in self.recomputed
        saved = [Saved(k, stage, microbatch) for k in (Kind.FORWARD, Kind.RECOMPUTE)]
        match kind:
            case Kind.FORWARD:
                value = self.digest(rank, action)
                if not self.program.backward:
                    self.gradients[rank, stage].append(value)
                else:
                    self.keep(rank, saved[0], f"checkpoint of {value}" if again else value)
            case Kind.RECOMPUTE:
                value = self.use(rank, saved[0]).removeprefix("checkpoint of ")
                self.keep(rank, saved[1], value)
            case Kind.BACKWARD | Kind.INPUT_GRADIENT:
                self.use(rank, saved[0])
                activations = self.use(rank, saved[again])
                value = self.digest(rank, Action(Kind.BACKWARD, stage, microbatch), activations)
                if kind is Kind.INPUT_GRADIENT:
                    self.keep(rank, Saved(kind, stage, microbatch), value)
            case Kind.WEIGHT_GRADIENT:
                value = self.use(rank, Saved(Kind.INPUT_GRADIENT, stage, microbatch))
            case _:
                raise AssertionError(f"{action} is not run")
        self.results[rank] = (action, value)

    def digest(self, rank: int, action: Action, *used: str) -> str:
        """The hash of the action, the messages of its edges, and `used`."""
        assert action.microbatch is not None
        brought = [
            self.use(rank, Received(edge, action.microbatch))
            for edge in self.program.edges
            if edge.dst == (action.kind, action.stage)
        ]
        return _digest(action, *brought, *used)

    def use(self, rank: int, buffer: Buffer) -> str:
        assert buffer in self.buffers[rank], f"rank {rank} uses {buffer}, which is not there"
        return self.buffers[rank][buffer]

    def keep(self, rank: int, buffer: Buffer, value: str) -> None:
        assert buffer not in self.buffers[rank], f"rank {rank}: {buffer} is overwritten"
        self.buffers[rank][buffer] = value

    def result_of(self, rank: int, produced_by: tuple[Kind, int], microbatch: int) -> str:
        """The result of the rank's last run, which must be by this kind of action and stage."""
        last = self.results[rank]
        assert last is not None, f"rank {rank} has no result yet"
        kind, stage = produced_by
        kinds = {
            Kind.FORWARD: [Kind.FORWARD],
            Kind.BACKWARD: [Kind.BACKWARD, Kind.INPUT_GRADIENT],
            Kind.WEIGHT_GRADIENT: [Kind.BACKWARD, Kind.WEIGHT_GRADIENT],
        }[kind]
        wanted = [Action(k, stage, microbatch) for k in kinds]
        assert last[0] in wanted, f"rank {rank} has the result of {last[0]}, not of {wanted}"
        return last[1]


def _digest(action: Action, *used: str) -> str:
    return hashlib.sha256(" ".join([str(action), *used]).encode()).hexdigest()
