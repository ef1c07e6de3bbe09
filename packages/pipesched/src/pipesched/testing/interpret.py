"""Run a program on symbols, and say what it must come to. Shares no code with `pipesched.lower`."""

from __future__ import annotations

import hashlib
from collections import deque
from functools import cache

from pipesched.action import Action
from pipesched.edge import Edge
from pipesched.kind import Kind
from pipesched.program import (
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


def interpret(program: Program) -> tuple[tuple[str, ...], ...]:
    """Run a program on symbols, with rules as strict as any runtime's.

    A result is a hash of what was run and of all it used. A rank keeps the result of its last run
    only. Messages of an edge arrive in order; sending never waits.

    Returns:
        Per stage, the gradients that were applied, sorted; compare with `expected_gradients`.

    Raises:
        AssertionError: Something is used that is not there, or left behind, or nobody can go on.
    """
    buffers: dict[Buffer, str] = {}
    results: list[tuple[Action, str] | None] = [None] * len(program.ranks)
    streams: dict[Edge, deque[tuple[int, int, int, str]]] = {e: deque() for e in program.edges}
    gradients: list[list[str]] = [[] for _ in range(program.n_stages)]
    reduced: set[int] = set()
    applied: set[int] = set()

    def result_of(rank: int, action: Action) -> str:
        last = results[rank]
        assert last is not None, f"rank {rank} has no result yet"
        assert last[0] == action, f"rank {rank} has the result of {last[0]}, not of {action}"
        return last[1]

    def execute(rank: int, position: int) -> bool:
        """Execute one instruction; False if it has to wait."""
        match program.ranks[rank][position]:
            case Run(action):
                assert action.microbatch is not None
                used: list[Buffer] = [
                    Received(edge, action.microbatch)
                    for edge in program.edges
                    if edge.dst == (action.kind, action.stage)
                ]
                saved = Saved(action.stage, action.microbatch)
                if action.kind is Kind.BACKWARD:
                    used.append(saved)
                for buffer in used:
                    assert buffer in buffers, f"{action} uses {buffer}, which is not there"
                value = _digest(action, *(buffers[buffer] for buffer in used))
                if action.kind is Kind.FORWARD:
                    assert saved not in buffers, f"{saved} is overwritten"
                    buffers[saved] = value
                results[rank] = (action, value)
            case Send(edge, microbatch, peer):
                value = result_of(rank, Action(*edge.src, microbatch))
                streams[edge].append((rank, peer, microbatch, value))
            case Receive(edge, microbatch, peer):
                if not streams[edge]:
                    return False
                sender, receiver, sent_microbatch, value = streams[edge].popleft()
                assert (sender, receiver) == (peer, rank), f"{edge}: wrong peer"
                assert sent_microbatch == microbatch, f"{edge}: got {sent_microbatch} out of order"
                assert Received(edge, microbatch) not in buffers, f"{edge} is overwritten"
                buffers[Received(edge, microbatch)] = value
            case Free(buffer):
                assert buffer in buffers, f"{buffer} is freed, but is not there"
                del buffers[buffer]
            case Accumulate(stage, microbatch):
                gradients[stage].append(result_of(rank, Action(Kind.BACKWARD, stage, microbatch)))
            case Reduce(stage):
                assert len(gradients[stage]) == program.n_microbatches, f"{stage} reduces too early"
                assert stage not in reduced, f"{stage} is reduced twice"
                reduced.add(stage)
            case Apply(stage):
                assert stage in reduced, f"{stage} is applied before it is reduced"
                assert stage not in applied, f"{stage} is applied twice"
                applied.add(stage)
        return True

    heads = [0] * len(program.ranks)
    ends = [len(instructions) for instructions in program.ranks]
    while heads != ends:
        before = list(heads)
        for rank in range(len(heads)):
            while heads[rank] < ends[rank] and execute(rank, heads[rank]):
                heads[rank] += 1
        assert heads != before, f"deadlock at {heads}"
    assert not buffers, f"never freed: {', '.join(map(str, buffers))}"
    assert not any(streams.values()), "sent, but never received"
    assert len(applied) == program.n_stages, f"applied only {sorted(applied)}"
    return tuple(tuple(sorted(of_stage)) for of_stage in gradients)


def expected_gradients(
    n_stages: int, n_microbatches: int, edges: tuple[Edge, ...]
) -> tuple[tuple[str, ...], ...]:
    """What `interpret` must return, found without any order: each result from those it needs."""

    @cache
    def value(kind: Kind, stage: int, microbatch: int) -> str:
        used = [value(*edge.src, microbatch) for edge in edges if edge.dst == (kind, stage)]
        if kind is Kind.BACKWARD:
            used.append(value(Kind.FORWARD, stage, microbatch))
        return _digest(Action(kind, stage, microbatch), *used)

    return tuple(
        tuple(sorted(value(Kind.BACKWARD, stage, m) for m in range(n_microbatches)))
        for stage in range(n_stages)
    )


def _digest(action: Action, *used: str) -> str:
    return hashlib.sha256(" ".join([str(action), *used]).encode()).hexdigest()
