"""Strategies for schedules with every kind of action, and a check whether they can be run."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from hypothesis import strategies as st

from pipesched.base.action import Action
from pipesched.base.edge import Endpoint, chain
from pipesched.base.kind import Kind
from pipesched.schedule.schedule import Schedule
from pipesched.testing.schedules import edge_sets, placements

Item = tuple[int, Action]
"""A rank and an action. The rank is needed, as copies of a stage on several ranks have equal
reductions and updates."""


@st.composite
def steps(
    draw: st.DrawFn,
    *,
    max_stages: int = 3,
    max_microbatches: int = 3,
    communicates: bool | None = False,
    chained: bool = False,
) -> Schedule:
    """Schedules of whole steps that can be run with buffered transfers, in unusual orders.

    The list of a rank is its part of a random order of all actions in which each action comes after
    those that it needs.

    Args:
        draw: Passed by Hypothesis.
        max_stages: At least 1.
        max_microbatches: At least 1.
        communicates: Whether sends and receives are there; None for both possibilities.
        chained: Whether the edges are those of the chain and perhaps one skip; if not, any edges.
    """
    n_stages = draw(st.integers(1, max_stages))
    n_microbatches = draw(st.integers(1, max_microbatches))
    placement = draw(placements(n_stages, n_microbatches))
    backward = draw(st.integers(0, 4)) > 0
    if chained:
        skips = [(0, n_stages - 1)] if n_stages > 2 and draw(st.booleans()) else []
        edges = chain(n_stages, skips, backward=backward)
    else:
        edges = draw(edge_sets(n_stages))
        if not backward:
            edges = tuple(edge for edge in edges if edge.dst[0] is Kind.FORWARD)
    if communicates is None:
        communicates = draw(st.booleans())

    empty = Schedule(
        "odd", n_stages, n_microbatches, ((),) * placement.n_ranks, placement, edges, backward
    )
    items: list[Item] = []
    for stage in range(n_stages):
        for m in range(n_microbatches):
            kinds = [Kind.FORWARD]
            if backward:
                kinds += [Kind.RECOMPUTE] * draw(st.integers(0, 1))
                split = draw(st.booleans())
                kinds += [Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT] if split else [Kind.BACKWARD]
            items += [(placement.rank(stage, m), Action(kind, stage, m)) for kind in kinds]
    if backward:
        at_the_end = draw(st.sampled_from([(), (Kind.REDUCE,), (Kind.REDUCE, Kind.UPDATE)]))
        items += [
            (rank, Action(kind, stage))
            for stage in range(n_stages)
            for rank in placement.ranks_of(stage)
            for kind in at_the_end
        ]
    if communicates:
        for edge in edges:
            for m in range(n_microbatches):
                src, dst = placement.rank(edge.src[1], m), placement.rank(edge.dst[1], m)
                if src != dst:
                    items += [(src, Action.send(edge, m)), (dst, Action.receive(edge, m))]

    together = {item: item[1] if item[1].kind is Kind.REDUCE else item for item in items}
    groups: dict[object, list[Item]] = {}
    for item in items:
        groups.setdefault(together[item], []).append(item)
    unmet: Counter[object] = Counter()
    users: dict[Item, list[object]] = {item: [] for item in items}
    for item, needed in _needs(empty, items):
        unmet[together[item]] += len(needed)
        for other in needed:
            users[other].append(together[item])
    order = draw(st.permutations(list(groups)))
    priority = {group: i for i, group in enumerate(order)}
    ready = [i for i, group in enumerate(order) if not unmet[group]]
    heapq.heapify(ready)
    ranks: list[list[Action]] = [[] for _ in range(placement.n_ranks)]
    while ready:
        for item in groups[order[heapq.heappop(ready)]]:
            ranks[item[0]].append(item[1])
            for group in users[item]:
                unmet[group] -= 1
                if not unmet[group]:
                    heapq.heappush(ready, priority[group])
    return Schedule(
        "odd",
        n_stages,
        n_microbatches,
        tuple(map(tuple, ranks)),
        placement,
        edges,
        backward,
    )


def can_be_run(schedule: Schedule, semantics: str = "buffered") -> bool:
    """Whether a complete schedule runs without deadlock, by a search for cycles in a graph.

    Actions that wait for each other, such as the send and the receive of a rendezvous, are one node
    of the graph.
    """
    if semantics == "stream" and not _streams_agree(schedule):
        return False
    items = [(rank, action) for rank, actions in enumerate(schedule.ranks) for action in actions]

    def node(item: Item) -> object:
        action = item[1]
        if action.kind is Kind.REDUCE:
            return action
        if semantics == "rendezvous" and action.edge is not None:
            return action.edge, action.microbatch
        return item

    graph: TopologicalSorter[object] = TopologicalSorter()
    for rank, actions in enumerate(schedule.ranks):
        for earlier, later in pairwise(actions):
            graph.add(node((rank, later)), node((rank, earlier)))
    for item, needed in _needs(schedule, items):
        for other in needed:
            if node(other) != node(item):
                graph.add(node(item), node(other))
    try:
        graph.prepare()
    except CycleError:
        return False
    return True


def _streams_agree(schedule: Schedule) -> bool:
    """Whether each rank receives the messages of another in the order in which they are sent."""
    rank_of = schedule.placement.rank
    streams: dict[tuple[int, int], deque[Action]] = {}
    for rank, actions in enumerate(schedule.ranks):
        for action in actions:
            if action.kind is Kind.SEND and action.edge and action.microbatch is not None:
                peer = rank_of(action.edge.dst[1], action.microbatch)
                arrival = Action.receive(action.edge, action.microbatch)
                streams.setdefault((rank, peer), deque()).append(arrival)
    for rank, actions in enumerate(schedule.ranks):
        for action in actions:
            if action.kind is Kind.RECEIVE and action.edge and action.microbatch is not None:
                peer = rank_of(action.edge.src[1], action.microbatch)
                if streams[peer, rank].popleft() != action:
                    return False
    return True


def _needs(schedule: Schedule, items: list[Item]) -> Iterator[tuple[Item, list[Item]]]:
    """For each item, the items that must come before it."""
    available = set(items)
    rank_of = schedule.placement.rank

    def existing(*candidates: Item) -> list[Item]:
        return [item for item in candidates if item in available]

    def producers(src: Endpoint, m: int) -> list[Item]:
        kind, stage = src
        kinds = [kind] if kind is Kind.FORWARD else [Kind.BACKWARD, Kind.INPUT_GRADIENT]
        return existing(*((rank_of(stage, m), Action(k, stage, m)) for k in kinds))

    def inputs(dst: Endpoint, m: int) -> Iterator[Item]:
        for edge in schedule.edges:
            if edge.dst == dst:
                arrival = (rank_of(dst[1], m), Action.receive(edge, m))
                yield from existing(arrival) or producers(edge.src, m)

    for item in items:
        rank, action = item
        stage, m = action.stage, action.microbatch
        if m is None:
            ends = [
                (rank, Action(kind, stage, microbatch))
                for microbatch in range(schedule.n_microbatches)
                for kind in (Kind.BACKWARD, Kind.WEIGHT_GRADIENT)
            ]
            if action.kind is Kind.UPDATE:
                ends.append((rank, Action(Kind.REDUCE, stage)))
            yield item, existing(*ends)
            continue
        here = [(rank, Action(kind, stage, m)) for kind in (Kind.FORWARD, Kind.RECOMPUTE)]
        match action.kind:
            case Kind.FORWARD:
                yield item, list(inputs((Kind.FORWARD, stage), m))
            case Kind.RECOMPUTE:
                yield item, existing(here[0])
            case Kind.BACKWARD | Kind.INPUT_GRADIENT:
                yield item, [*existing(*here), *inputs((Kind.BACKWARD, stage), m)]
            case Kind.WEIGHT_GRADIENT:
                yield item, existing((rank, Action(Kind.INPUT_GRADIENT, stage, m)))
            case Kind.SEND if action.edge is not None:
                yield item, producers(action.edge.src, m)
            case Kind.RECEIVE if action.edge is not None:
                yield item, [(rank_of(action.edge.src[1], m), Action.send(action.edge, m))]
