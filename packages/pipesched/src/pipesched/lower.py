"""From a schedule to the instructions that execute it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipesched.action import Action
from pipesched.check import check
from pipesched.edge import Edge, Endpoint, chain, checked_edges
from pipesched.errors import ProgramError
from pipesched.kind import Kind
from pipesched.program import (
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
from pipesched.schedule import Schedule


def lower(schedule: Schedule, edges: Iterable[Edge] | None = None) -> Program:
    """The program that runs `schedule` and moves results over `edges`.

    Around each action: receive what it needs just before it; run it; start to send what others
    need of it, so that the transfers overlap with all that follows; free what nothing uses any
    more; add up its gradients if it is a backward. After a stage's last backward, reduce its
    gradients and apply them.

    An edge that goes backwards in time cannot be made (`Edge` refuses it), so the program never
    deadlocks: see `pipesched.check`.

    Args:
        schedule: Any schedule that `check` accepts.
        edges: What stages send each other; `chain(n_stages)` if None. One edge may stand for any
            number of tensors. An empty set leaves the stages independent.

    Raises:
        ScheduleError: `check` refuses the schedule.
        EdgeError: An edge twice, or to a stage that is not there.
        ProgramError: The two ends of an edge run the microbatches in different orders, so that its
            messages would not be received in the order in which they are sent.
    """
    check(schedule)
    n_stages = schedule.n_stages
    edges = chain(n_stages) if edges is None else checked_edges(edges, n_stages)
    _check_streams(schedule, edges)
    outgoing: dict[Endpoint, list[Edge]] = {}
    incoming: dict[Endpoint, list[Edge]] = {}
    for edge in edges:
        outgoing.setdefault(edge.src, []).append(edge)
        incoming.setdefault(edge.dst, []).append(edge)
    placement = schedule.placement

    def instructions(actions: tuple[Action, ...]) -> Iterator[Instruction]:
        backwards_left = [schedule.n_microbatches] * n_stages
        for action in actions:
            stage, microbatch = action.stage, action.microbatch
            assert microbatch is not None
            brought = incoming.get((action.kind, stage), ())
            for edge in brought:
                yield Receive(edge, microbatch, placement.rank(edge.src[1], microbatch))
            yield Run(action)
            for edge in outgoing.get((action.kind, stage), ()):
                yield Send(edge, microbatch, placement.rank(edge.dst[1], microbatch))
            for edge in brought:
                yield Free(Received(edge, microbatch))
            if action.kind is Kind.BACKWARD:
                yield Free(Saved(stage, microbatch))
                yield Accumulate(stage, microbatch)
                backwards_left[stage] -= 1
                if not backwards_left[stage]:
                    yield Reduce(stage)
                    yield Apply(stage)

    ranks = tuple(tuple(instructions(actions)) for actions in schedule.ranks)
    return Program(schedule.name, n_stages, schedule.n_microbatches, edges, ranks)


def _check_streams(schedule: Schedule, edges: tuple[Edge, ...]) -> None:
    order: dict[Endpoint, list[int]] = {}
    for actions in schedule.ranks:
        for action in actions:
            assert action.microbatch is not None
            order.setdefault((action.kind, action.stage), []).append(action.microbatch)
    for edge in edges:
        for sent, received in zip(order[edge.src], order[edge.dst], strict=True):
            if sent != received:
                receiver = schedule.placement.rank(edge.dst[1], received)
                raise ProgramError(
                    "an edge's two ends run the microbatches in the same order; got "
                    f"{edge} sending {order[edge.src]} and receiving {order[edge.dst]}",
                    rule="stream",
                    rank=receiver,
                    position=None,
                    instruction=Receive(
                        edge, received, schedule.placement.rank(edge.src[1], received)
                    ),
                )
