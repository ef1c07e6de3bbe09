"""Lowers a schedule to the instructions that execute it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from pipesched.base.action import Action
from pipesched.base.checks import check_kind
from pipesched.base.edge import ENDPOINTS, Edge, Endpoint, checked_edges
from pipesched.base.kind import Kind
from pipesched.judge.check import check
from pipesched.schedule.program import (
    Accumulate,
    Apply,
    Free,
    Instruction,
    Program,
    Receive,
    Received,
    Reduce,
    Run,
    Saved,
    Send,
)
from pipesched.schedule.schedule import Schedule
from pipesched.simulation.communicate import with_reductions


def lower(schedule: Schedule, edges: Iterable[Edge] | None = None) -> Program:
    """The program that runs `schedule` and moves results over its edges.

    The instructions around each action are: receive what it needs, just before it; run it; start to
    send its results to others, so that the transfers overlap with everything that follows; free the
    buffers that nothing uses any more; accumulate its gradients. After the last gradient of a stage
    come its reduction and its update.

    If the schedule has receives, reductions or updates, they stay where they are; without updates,
    each comes right after its reduction. If it has sends, they start as soon as their results are
    produced, which may be earlier than in the schedule: a program does not keep results, and a send
    does not wait.

    The messages of a stream are received in the order in which they are sent. If the two ranks run
    the microbatches in different orders, this may be earlier than they are needed.

    Results between stages of one rank are sent and received at once.

    Args:
        schedule: Any schedule that `check` accepts.
        edges: The results that stages send to each other, in place of the schedule's edges. One
            edge may stand for any number of tensors. Without edges, the stages are independent.

    Raises:
        ScheduleError: `check` refuses the schedule with these edges.
        EdgeError: An edge is there twice, or joins a stage that is not there.
        ArgumentError: Stages have copies, and the schedule has sends and receives without
            reductions: add these first, by `with_reductions`.
    """
    check_kind("schedule", schedule, Schedule)
    if edges is not None:
        schedule = replace(schedule, edges=checked_edges(edges, schedule.n_stages))
    check(schedule)
    if schedule.backward and not schedule.updates:
        schedule = with_reductions(schedule)
    lowering = _Lowering(schedule)
    return Program(
        schedule.name,
        schedule.n_stages,
        schedule.n_microbatches,
        schedule.edges,
        tuple(tuple(lowering.rank(rank)) for rank in range(len(schedule.ranks))),
        schedule.placement,
        schedule.backward,
    )


class _Lowering:
    """The data that is needed to lower the list of any rank."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.rank_of = schedule.placement.rank
        self.communicates = schedule.communicates
        self.incoming: dict[Endpoint, list[Edge]] = {}
        self.outgoing: dict[Endpoint, list[Edge]] = {}
        for edge in schedule.edges:
            self.outgoing.setdefault(edge.src, []).append(edge)
            self.incoming.setdefault(edge.dst, []).append(edge)
        actions = [action for row in schedule.ranks for action in row]
        self.applies = any(action.kind is Kind.UPDATE for action in actions)
        self.recomputed = {
            (action.stage, action.microbatch) for action in actions if action.kind is Kind.RECOMPUTE
        }
        # For each edge, sender and receiver, the microbatches in the order in which they are sent.
        self.streams: defaultdict[tuple[Edge, int, int], deque[int]] = defaultdict(deque)
        for rank, row in enumerate(schedule.ranks):
            for action in row:
                if action.kind in ENDPOINTS:
                    microbatch = action.one_microbatch
                    for edge in self.outgoing.get(_end(action), ()):
                        peer = self.rank_of(edge.dst[1], microbatch)
                        if peer != rank:
                            self.streams[edge, rank, peer].append(microbatch)

    def rank(self, rank: int) -> Iterator[Instruction]:
        """The instructions of one rank."""
        for action in self.schedule.ranks[rank]:
            match action.kind:
                case Kind.SEND:
                    pass  # the result was sent when it was produced
                case Kind.RECEIVE:
                    yield from self._receive(action.moved_over, rank, action.one_microbatch)
                case Kind.REDUCE:
                    yield Reduce(action.stage)
                    if not self.applies:
                        yield Apply(action.stage)
                case Kind.UPDATE:
                    yield Apply(action.stage)
                case _:
                    yield from self._run(action, rank)

    def _run(self, action: Action, rank: int) -> Iterator[Instruction]:
        microbatch = action.one_microbatch
        brought, needed = [], []
        if action.kind in ENDPOINTS:
            brought = self.incoming.get(_end(action), [])
            needed = self.outgoing.get(_end(action), [])
        for edge in brought:
            if not self.communicates and self.rank_of(edge.src[1], microbatch) != rank:
                yield from self._receive(edge, rank, microbatch)
        yield Run(action)
        for edge in needed:
            peer = self.rank_of(edge.dst[1], microbatch)
            yield Send(edge, microbatch, peer)
            if peer == rank:
                yield Receive(edge, microbatch, rank)
        for edge in brought:
            yield Free(Received(edge, microbatch))
        for kind in self._used_up(action):
            yield Free(Saved(kind, action.stage, microbatch))
        if action.kind in (Kind.BACKWARD, Kind.WEIGHT_GRADIENT):
            yield Accumulate(action.stage, microbatch)

    def _receive(self, edge: Edge, rank: int, microbatch: int) -> Iterator[Receive]:
        """Receive the messages up to this microbatch, unless it has been received already."""
        peer = self.rank_of(edge.src[1], microbatch)
        stream = self.streams[edge, peer, rank]
        while microbatch in stream:
            yield Receive(edge, stream.popleft(), peer)

    def _used_up(self, action: Action) -> list[Kind]:
        """The kinds whose saved buffers of this microbatch are not needed after the action."""
        match action.kind:
            case Kind.BACKWARD | Kind.INPUT_GRADIENT:
                again = (action.stage, action.microbatch) in self.recomputed
                return [Kind.FORWARD, *([Kind.RECOMPUTE] if again else [])]
            case Kind.WEIGHT_GRADIENT:
                return [Kind.INPUT_GRADIENT]
        return []


def _end(action: Action) -> Endpoint:
    return ENDPOINTS[action.kind], action.stage
