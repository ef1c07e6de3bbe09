"""Checks any schedule. It shares no code with the generators or `with_communication`.

A rank runs its list in order, and waits where it has to. These are the rules, in the order in which
they are checked:

- completeness: every stage runs every microbatch forward once and, unless the schedule is for
  inference, backward once, whole (B) or in two parts (I and W); a recomputation (R) runs at most
  once. Either every result that changes ranks has a send and a receive, or there are none at all.
  Either every stage of every rank has a reduction (G), or there are none; the same holds for
  updates (U), which need reductions.
- placement: an action is on the rank that its stage has on the route of its microbatch.
- dependency: no rank lists an action before another action of the same rank that it needs. An
  action needs the results of the edges to it. A backward needs its forward and its recomputation, a
  weight gradient its input gradient, a send the action that produces its result, a reduction all
  gradients of its stage on its rank, and an update these gradients and its reduction.
- deadlock: there is no circle of ranks that wait for each other. Copies of a stage (`Placement`)
  reduce their gradients together, so each waits for the others. The semantics say what sends and
  receives wait for:

  - "buffered": a send does not wait, and a receive waits until its message has been sent.
  - "rendezvous": a send waits until its receiver has reached the receive, and the receive waits
    until the sender has reached the send.
  - "stream": like buffered, but the messages from one rank to another arrive one at a time, in the
    order in which they were sent (rule "stream"), so a receive of any but the next one is stuck.

  Without sends and receives, an action waits until all actions that it needs have been run.
- memory: no rank holds more than its bound; this depends only on the order of its list.

Each check takes time proportional to the number of actions and their edges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from pipesched.base.action import Action
from pipesched.base.checks import bounds_of, check_kind
from pipesched.base.edge import Edge, Endpoint
from pipesched.base.kind import Kind
from pipesched.errors import ArgumentError
from pipesched.judge.broken import ScheduleError
from pipesched.judge.positions import Place, Positions
from pipesched.schedule.schedule import Schedule

Semantics = Literal["buffered", "rendezvous", "stream"]
"""What sends and receives wait for."""

_SEMANTICS = ("buffered", "rendezvous", "stream")
_Wait = tuple[int, int, Action]
"""A rank, how many actions it must have run before the waiting rank can go on, and the last of
these actions."""


def check(
    schedule: Schedule,
    *,
    semantics: Semantics = "buffered",
    activation_bytes: float | Sequence[float] = 1,
    weight_gradient_bytes: float | Sequence[float] | None = None,
    checkpoint_bytes: float | Sequence[float] = 0,
    memory_bytes: float | Sequence[float] | None = None,
) -> None:
    """Accept a schedule that runs every action once, in an order that never deadlocks.

    Args:
        schedule: The schedule to check.
        semantics: What sends and receives wait for. A schedule without sends and receives passes
            "buffered" if there is a way to run it. The other two need them, if any result changes
            ranks.
        activation_bytes: Bytes that a stage keeps of a microbatch from forward to backward, one
            number or one for each stage; 1 counts microbatches.
        weight_gradient_bytes: Bytes of activations and gradients that the weight gradient still
            needs after the input gradient; all of the activations if None.
        checkpoint_bytes: Bytes that a forward keeps if it is recomputed later.
        memory_bytes: The most bytes that a rank may hold, one number or one for each rank; None for
            no limit.

    Raises:
        ScheduleError: The schedule breaks a rule; the error has the rule, rank, position and
            action.
        ArgumentError: The semantics are unknown, or they need sends and receives that the schedule
            does not have; or there is not one number of bytes for each stage or rank, or one is
            negative.
    """
    check_kind("schedule", schedule, Schedule)
    n_stages = schedule.n_stages
    whole = bounds_of("activation_bytes", activation_bytes, n_stages)
    kept = whole
    if weight_gradient_bytes is not None:
        kept = bounds_of("weight_gradient_bytes", weight_gradient_bytes, n_stages)
    checkpoint = bounds_of("checkpoint_bytes", checkpoint_bytes, n_stages)
    if semantics not in _SEMANTICS:
        raise ArgumentError(f"semantics is one of {', '.join(_SEMANTICS)}; got {semantics!r}")
    if semantics != "buffered" and not schedule.communicates and _changes_ranks(schedule):
        raise ArgumentError(
            f"semantics={semantics!r} needs sends and receives; got {schedule.name} without any; "
            "add them by with_communication, or check it as buffered"
        )
    places = Positions(schedule)
    if semantics == "stream":
        _check_streams(schedule)
    _check_deadlock(schedule, _waits(schedule, places, semantics == "rendezvous"))
    if memory_bytes is not None:
        bounds = bounds_of("memory_bytes", memory_bytes, len(schedule.ranks))
        _check_memory(schedule, places, whole, kept, checkpoint, bounds)


def _changes_ranks(schedule: Schedule) -> bool:
    """Whether any result is needed on another rank than the one that produces it."""
    routes = schedule.placement.routes
    used = [routes[route] for route in set(schedule.placement.route_of or (0,))]
    return any(r[edge.src[1]] != r[edge.dst[1]] for r in used for edge in schedule.edges)


def _waits(schedule: Schedule, places: Positions, rendezvous: bool) -> list[list[list[_Wait]]]:
    """By rank and position, what other ranks must have run before; checks the rule "dependency"."""
    incoming: dict[Endpoint, list[Edge]] = {}
    for edge in schedule.edges:
        incoming.setdefault(edge.dst, []).append(edge)
    needs = _Needs(schedule, places, incoming, rendezvous)
    waits: list[list[list[_Wait]]] = []
    for rank, actions in enumerate(schedule.ranks):
        waits.append([])
        for position, action in enumerate(actions):
            others: list[_Wait] = []
            for other_rank, other_position in needs.before(action, rank):
                if other_rank != rank:
                    needed = schedule.ranks[other_rank][other_position]
                    others.append((other_rank, other_position + 1, needed))
                elif other_position > position:
                    raise ScheduleError(
                        f"an action comes after those it needs; got {action} at rank {rank}, "
                        f"position {position}, before {actions[other_position]} at position "
                        f"{other_position}",
                        rule="dependency",
                        rank=rank,
                        position=position,
                        action=action,
                    )
            for other_rank, other_position in needs.beside(action, rank):
                met = schedule.ranks[other_rank][other_position]
                others.append((other_rank, other_position, met))
            waits[-1].append(others)
    return waits


class _Needs:
    """Says which other actions an action needs."""

    def __init__(
        self,
        schedule: Schedule,
        places: Positions,
        incoming: dict[Endpoint, list[Edge]],
        rendezvous: bool,
    ) -> None:
        self.schedule, self.places, self.incoming = schedule, places, incoming
        self.rendezvous = rendezvous

    def before(self, action: Action, rank: int) -> Iterator[Place]:
        """The actions that must have been run before this one."""
        places, stage, m = self.places, action.stage, action.microbatch
        if m is None:
            yield from self._before_the_end(action, rank)
            return
        match action.kind:
            case Kind.FORWARD:
                yield from self._brought((Kind.FORWARD, stage), m)
            case Kind.RECOMPUTE:
                yield places.of(Kind.FORWARD, stage, m)
            case Kind.BACKWARD | Kind.INPUT_GRADIENT:
                yield places.of(Kind.FORWARD, stage, m)
                if places.has(Kind.RECOMPUTE, stage, m):
                    yield places.of(Kind.RECOMPUTE, stage, m)
                yield from self._brought((Kind.BACKWARD, stage), m)
            case Kind.WEIGHT_GRADIENT:
                yield places.of(Kind.INPUT_GRADIENT, stage, m)
            case Kind.SEND:
                yield self._producer(action.moved_over.src, m)
            case Kind.RECEIVE:
                if not self.rendezvous:
                    yield places.of(Kind.SEND, places.edge(action.moved_over), m)

    def beside(self, action: Action, rank: int) -> Iterator[Place]:
        """The actions of other ranks that run at the same time as this one."""
        places = self.places
        if action.kind is Kind.REDUCE:
            for other in self.schedule.placement.ranks_of(action.stage):
                place = places.once(Kind.REDUCE, other, action.stage)
                if other != rank and place is not None:
                    yield place
        elif self.rendezvous and action.edge is not None:
            kind = Kind.RECEIVE if action.kind is Kind.SEND else Kind.SEND
            yield places.of(kind, places.edge(action.edge), action.one_microbatch)

    def _brought(self, to: Endpoint, microbatch: int) -> Iterator[Place]:
        """The actions that bring the results of the edges to `to`."""
        rank_of = self.schedule.placement.rank
        for edge in self.incoming.get(to, ()):
            moves = self.places.communicates and (
                rank_of(edge.src[1], microbatch) != rank_of(to[1], microbatch)
            )
            if moves:
                yield self.places.of(Kind.RECEIVE, self.places.edge(edge), microbatch)
            else:
                yield self._producer(edge.src, microbatch)

    def _producer(self, src: Endpoint, microbatch: int) -> Place:
        """The action that produces the result of an edge from `src`."""
        kind, stage = src
        if kind is Kind.FORWARD:
            return self.places.of(Kind.FORWARD, stage, microbatch)
        return self.places.gradient(stage, microbatch)

    def _before_the_end(self, action: Action, rank: int) -> Iterator[Place]:
        """The actions that a reduction or an update of the stage on this rank needs."""
        if action.kind is Kind.UPDATE:
            reduction = self.places.once(Kind.REDUCE, rank, action.stage)
            if reduction is not None:
                yield reduction
        for m in range(self.schedule.n_microbatches):
            if self.schedule.placement.rank(action.stage, m) == rank:
                yield self.places.last_of_backward(action.stage, m)


def _check_deadlock(schedule: Schedule, waits: list[list[list[_Wait]]]) -> None:
    """Run the lists as far as possible; a rank that stops early is in a circle, or behind one."""
    n_ranks = len(schedule.ranks)
    heads = [0] * n_ranks  # how many actions each rank has run
    waiting: list[list[int]] = [[] for _ in range(n_ranks)]  # for each rank, those waiting for it
    stuck_at: dict[int, _Wait] = {}

    def run(rank: int) -> bool:
        """Advance a rank as far as possible; returns whether it ran any action."""
        start = head = heads[rank]
        row = waits[rank]
        while head < len(row):
            unmet = next((wait for wait in row[head] if heads[wait[0]] < wait[1]), None)
            if unmet is not None:
                stuck_at[rank] = unmet
                waiting[unmet[0]].append(rank)
                break
            head += 1
            heads[rank] = head
        return head > start

    ready = list(range(n_ranks))
    while ready:
        rank = ready.pop()
        stuck_at.pop(rank, None)
        if run(rank):
            woken = [other for other in waiting[rank] if stuck_at[other][1] <= heads[rank]]
            waiting[rank] = [other for other in waiting[rank] if other not in woken]
            ready.extend(woken)
    if stuck_at:
        rank = min(stuck_at)
        seen: list[int] = []
        while rank not in seen:
            seen.append(rank)
            rank = stuck_at[rank][0]
        circle = seen[seen.index(rank) :]
        start = circle.index(min(circle))
        circle = circle[start:] + circle[:start]
        steps = [
            f"rank {rank} stuck at position {heads[rank]}, where "
            f"{schedule.ranks[rank][heads[rank]]} waits for {stuck_at[rank][2]}"
            for rank in circle
        ]
        rank = circle[0]
        raise ScheduleError(
            f"the ranks wait for each other; got {'; '.join(steps)}",
            rule="deadlock",
            rank=rank,
            position=heads[rank],
            action=schedule.ranks[rank][heads[rank]],
        )


def _check_streams(schedule: Schedule) -> None:
    """Check that messages from one rank to another are received in the order they are sent in."""
    rank_of = schedule.placement.rank
    sent: dict[tuple[int, int], list[tuple[Edge, int]]] = {}
    for rank, actions in enumerate(schedule.ranks):
        for action in actions:
            if action.kind is Kind.SEND:
                edge, microbatch = action.moved_over, action.one_microbatch
                peer = rank_of(edge.dst[1], microbatch)
                sent.setdefault((rank, peer), []).append((edge, microbatch))
    streams = {pair: iter(messages) for pair, messages in sent.items()}
    for rank, actions in enumerate(schedule.ranks):
        for position, action in enumerate(actions):
            if action.kind is Kind.RECEIVE:
                wanted = action.moved_over, action.one_microbatch
                peer = rank_of(wanted[0].src[1], wanted[1])
                edge, microbatch = next(streams[peer, rank])
                if (edge, microbatch) != wanted:
                    raise ScheduleError(
                        "messages from one rank to another arrive in the order they are sent in; "
                        f"got {action} at rank {rank}, position {position}, where "
                        f"{Action.send(edge, microbatch)} of rank {peer} arrives",
                        rule="stream",
                        rank=rank,
                        position=position,
                        action=action,
                    )


def _check_memory(
    schedule: Schedule,
    places: Positions,
    whole: tuple[float, ...],
    kept: tuple[float, ...],
    checkpoint: tuple[float, ...],
    bounds: tuple[float, ...],
) -> None:
    """Check the memory: a forward takes activations, a backward or weight gradient frees the last.

    Without backwards, the activations of a forward are freed at its end.
    """
    for rank, actions in enumerate(schedule.ranks):
        held = 0.0
        for position, action in enumerate(actions):
            stage = action.stage
            match action.kind:
                case Kind.FORWARD:
                    again = places.has(Kind.RECOMPUTE, stage, action.one_microbatch)
                    held += checkpoint[stage] if again else whole[stage]
                    if not schedule.backward:
                        held = whole[stage]
                case Kind.RECOMPUTE:
                    held += whole[stage] - checkpoint[stage]
                case Kind.BACKWARD:
                    held -= whole[stage]
                case Kind.INPUT_GRADIENT:
                    held += kept[stage] - whole[stage]
                case Kind.WEIGHT_GRADIENT:
                    held -= kept[stage]
            if held > bounds[rank]:
                raise ScheduleError(
                    f"rank {rank} may hold memory_bytes={bounds[rank]:g}; got {held:g} from "
                    f"{action} at position {position} on",
                    rule="memory",
                    rank=rank,
                    position=position,
                    action=action,
                )
