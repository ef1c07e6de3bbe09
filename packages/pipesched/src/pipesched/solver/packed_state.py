"""A pipeline as the search sees it: lanes of equal actions.

All microbatches of a route cost the same, so what matters is how many forwards of a stage have run,
not which: whatever time a schedule takes, so does the one in which every stage runs microbatches in
order (of each stage, the k-th action to start gets the k-th microbatch; it needs one result of k
microbatches, and had k). A **lane** is all actions of one kind, stage and route, in that order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import NamedTuple

from pipesched.base.edge import ENDPOINTS, Edge
from pipesched.base.kind import Kind
from pipesched.base.placement import Placement
from pipesched.schedule.costs import Costs


class Arrival(NamedTuple):
    """What a lane needs of another rank's lane."""

    queue: int
    """Where the times at which results arrive are kept until they are used."""
    src: int
    """The lane that makes them."""
    lag_s: float
    """Seconds from the start of the action that makes one until it has arrived, at least."""


class Departure(NamedTuple):
    """What a lane sends to another rank."""

    queue: int
    """Where the times of arrival go."""
    link: int
    """What a message occupies."""
    transfer_s: float
    """For how long."""
    latency_s: float
    """Seconds from there until it has arrived."""


@dataclass(slots=True)
class ActionLane:
    """All actions of one kind, stage and route, in order."""

    kind: Kind
    """What is done."""
    stage: int
    """For which stage."""
    rank: int
    """By whom."""
    microbatches: tuple[int, ...]
    """Of each action."""
    seconds: float
    """Of one action."""
    taken: float
    """Bytes that one action takes; negative if it gives some back."""
    follows: list[int] = field(default_factory=list)
    """Lanes of the same rank whose k-th action comes before the k-th of this one."""
    arrivals: list[Arrival] = field(default_factory=list)
    """What comes from other ranks."""
    departures: list[Departure] = field(default_factory=list)
    """What goes there."""
    depth: float = inf
    """Of forwards: the most that may have run before their backwards."""
    tail_s: float = 0.0
    """Seconds from the end of an action to the end of its microbatch, at least."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lanes of a pipeline."""

    lanes: tuple[ActionLane, ...]
    """Each after those that it needs."""
    bounds: tuple[float, ...]
    """Per rank, the bytes that it may hold."""
    overlap: bool
    """Whether ranks compute while they send."""
    n_links: int
    """Pairs of ranks that pass something on, of each direction."""
    queues: tuple[tuple[float, ...], ...]
    """Of what is on its way from rank to rank, when it arrives; empty at the start, but for
    `alone`."""
    after_s: float = 0.0
    """Seconds from the end of the last action to that of the step, at least; also for `alone`."""

    def back(self, forward: ActionLane) -> int:
        """The lane that brings back what a forward keeps: its whole backward or input gradient."""
        return next(
            i
            for i, lane in enumerate(self.lanes)
            if lane.kind in (Kind.BACKWARD, Kind.INPUT_GRADIENT)
            and (lane.stage, lane.microbatches) == (forward.stage, forward.microbatches)
        )

    @property
    def n_actions(self) -> int:
        """Of all lanes."""
        return sum(len(lane.microbatches) for lane in self.lanes)


def lanes_of(
    n_microbatches: int,
    costs: Costs,
    placement: Placement,
    edges: Iterable[Edge],
    activations: Sequence[float],
    weight_gradients: Sequence[float] | None,
    bounds: Sequence[float],
) -> Lanes:
    """The lanes of a pipeline.

    Args:
        n_microbatches: Of the batch.
        costs: Seconds and links; its bytes are replaced by the next two.
        placement: Which rank runs what.
        edges: What the stages pass to each other.
        activations: Bytes per stage, from forward to backward.
        weight_gradients: Bytes per stage, from input gradient to weight gradient; None if
            backwards are whole.
        bounds: Per rank, the bytes that it may hold.

    Raises:
        ArgumentError: Costs of other stages, or without one of the edges.
    """
    edge_s = {edge: costs.link_s(edge) for edge in edges}
    route_of = placement.route_of or (0,) * n_microbatches
    lanes: list[ActionLane] = []
    links: dict[tuple[int, int], int] = {}
    n_queues = 0
    for number, route in enumerate(placement.routes):
        microbatches = tuple(m for m, taken in enumerate(route_of) if taken == number)
        of_route = _of_route(route, microbatches, costs, activations, weight_gradients)
        at = {
            (ENDPOINTS.get(lane.kind, lane.kind), lane.stage): len(lanes) + i
            for i, lane in enumerate(of_route)
        }
        lanes += of_route
        for lane in of_route:
            if lane.kind is Kind.WEIGHT_GRADIENT:
                lane.follows.append(at[Kind.BACKWARD, lane.stage])
            elif lane.kind is not Kind.FORWARD:
                lane.follows.append(at[Kind.FORWARD, lane.stage])
        for edge, (transfer_s, latency_s) in edge_s.items():
            src, dst = lanes[at[edge.src]], lanes[at[edge.dst]]
            if src.rank == dst.rank:
                dst.follows.append(at[edge.src])
                continue
            link = links.setdefault((src.rank, dst.rank), len(links))
            lag_s = src.seconds + transfer_s + latency_s
            src.departures.append(Departure(n_queues, link, transfer_s, latency_s))
            dst.arrivals.append(Arrival(n_queues, at[edge.src], lag_s))
            n_queues += 1
    _set_tails(lanes)
    return Lanes(tuple(lanes), tuple(bounds), costs.overlap, len(links), ((),) * n_queues)


def busy_depths(lanes: Lanes) -> list[float]:
    """Per lane of forwards, the microbatches on their way that keep its rank busy; 0.0 of others.

    On their way from a forward to its backward: as many as the rank could run in that time.
    """
    work_s = [0.0] * len(lanes.bounds)
    for lane in lanes.lanes:
        work_s[lane.rank] += lane.seconds
    depths = []
    for i, lane in enumerate(lanes.lanes):
        depth = 0.0
        if lane.kind is Kind.FORWARD and work_s[lane.rank]:
            depth = _way_s(lanes, i, lanes.back(lane)) / work_s[lane.rank]
        depths.append(depth)
    return depths


def with_depths(lanes: Lanes, share: float) -> Lanes:
    """The same with at most this share of `busy_depths` on their way, but one at least."""
    limited = [
        replace(lane, depth=max(1, ceil(share * depth))) if depth else lane
        for lane, depth in zip(lanes.lanes, busy_depths(lanes), strict=True)
    ]
    return replace(lanes, lanes=tuple(limited))


def fitting_share(lanes: Lanes) -> float:
    """The largest share, 1 at most, for which all ranks have the memory at all times."""

    def fits(share: float) -> bool:
        needed = [0.0] * len(lanes.bounds)
        for lane in with_depths(lanes, share).lanes:
            if lane.depth < inf:
                needed[lane.rank] += lane.taken * lane.depth
        return all(n <= bound for n, bound in zip(needed, lanes.bounds, strict=True))

    if fits(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(8):  # to 1/256, finer than a microbatch of most depths
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def memory_bound_s(lanes: Lanes) -> float:
    """What the step takes at least, as every rank holds every microbatch for some time.

    From its forward to its backward a microbatch is on its way, and takes bytes of the bound; the
    sum over all of bytes times seconds is at most the bound times the seconds from the rank's first
    forward to the last end of what gives back. If all take and give back a bytes at a time, of
    which c fit, they come no faster than forwards run, and go no faster than what gives back, so
    that a c (c - 1) / 2 times the seconds of both are never used.
    """
    starts_s = _earliest_of_all(lanes)
    best_s = 0.0
    for rank, bound in enumerate(lanes.bounds):
        own = [i for i, lane in enumerate(lanes.lanes) if lane.rank == rank and lane.microbatches]
        takers = [i for i in own if lanes.lanes[i].taken > 0]
        givers = [lanes.lanes[i] for i in own if lanes.lanes[i].taken < 0]
        if not takers or not givers or bound == inf:
            continue
        used = 0.0
        for i in own:
            lane = lanes.lanes[i]
            n = len(lane.microbatches)
            if lane.kind is Kind.FORWARD:
                used += n * lane.taken * _way_s(lanes, i, lanes.back(lane))
            elif lane.kind is Kind.WEIGHT_GRADIENT:
                used -= n * lane.taken * lane.seconds
        first = lanes.lanes[takers[0]]
        if len(takers) == len(givers) == 1 and first.taken == -givers[0].taken:
            c = min(bound // first.taken, len(first.microbatches))
            bound = c * first.taken
            used += first.taken * c * (c - 1) / 2 * (first.seconds + givers[0].seconds)
        head_s = min(starts_s[i][0] for i in own)
        best_s = max(best_s, head_s + used / bound + min(giver.tail_s for giver in givers))
    return best_s


def alone(lanes: Lanes, rank: int) -> Lanes:
    """One rank's lanes, as if all others had as many devices and as much memory as they like.

    No schedule of the whole takes less time than the best one of these: what comes back from other
    ranks does so as early as it can. This is what a bound of the memory costs, as few microbatches
    on their way leave the rank idle.
    """
    ends = [len(lane.microbatches) for lane in lanes.lanes]
    own = [i for i, lane in enumerate(lanes.lanes) if lane.rank == rank]
    new = {i: number for number, i in enumerate(own)}
    kept = [
        replace(
            lanes.lanes[i],
            rank=0,
            follows=[new[src] for src in lanes.lanes[i].follows],
            arrivals=[],
            departures=[],
        )
        for i in own
    ]
    queues: list[tuple[float, ...]] = []
    starts_s = _earliest_of_all(lanes)
    for i in own:
        if ends[i] and starts_s[i][-1]:
            kept[new[i]].arrivals.append(Arrival(len(queues), 0, 0.0))
            queues.append(tuple(starts_s[i]))
        for j, way_s in _ways(lanes, i).items():
            seconds = lanes.lanes[i].seconds
            kept[new[i]].departures.append(Departure(len(queues), 0, 0.0, way_s - seconds))
            kept[new[j]].arrivals.append(Arrival(len(queues), new[i], way_s))
            queues.append(())
    followed = {src for lane in kept for src in lane.follows}
    followed |= {arrival.src for lane in kept for arrival in lane.arrivals if arrival.lag_s}
    last = [lane.tail_s for i, lane in enumerate(kept) if i not in followed]
    return Lanes(tuple(kept), (lanes.bounds[rank],), True, 1, tuple(queues), min(last, default=0.0))


def _of_route(
    route: Sequence[int],
    microbatches: tuple[int, ...],
    costs: Costs,
    activations: Sequence[float],
    weight_gradients: Sequence[float] | None,
) -> list[ActionLane]:
    up, down = range(len(route)), list(reversed(range(len(route))))
    ways = [(Kind.FORWARD, stage, activations[stage]) for stage in up]
    if weight_gradients is None:
        ways += [(Kind.BACKWARD, stage, -activations[stage]) for stage in down]
    else:
        for stage in down:
            taken = weight_gradients[stage] - activations[stage]
            ways.append((Kind.INPUT_GRADIENT, stage, taken))
        ways += [(Kind.WEIGHT_GRADIENT, stage, -weight_gradients[stage]) for stage in down]
    seconds = {kind: costs.seconds(kind, len(route)) for kind, _, _ in ways}
    return [
        ActionLane(kind, stage, route[stage], microbatches, seconds[kind][stage], taken)
        for kind, stage, taken in ways
    ]


def _set_tails(lanes: list[ActionLane]) -> None:
    for lane in reversed(lanes):
        for src in lane.follows:
            before = lanes[src]
            before.tail_s = max(before.tail_s, lane.seconds + lane.tail_s)
        for arrival in lane.arrivals:
            before = lanes[arrival.src]
            way_s = arrival.lag_s - before.seconds + lane.seconds + lane.tail_s
            before.tail_s = max(before.tail_s, way_s)


def _needed(lanes: Lanes, index: int) -> list[tuple[int, float]]:
    """The lanes that one needs, and the seconds from the start of an action there to one here."""
    lane = lanes.lanes[index]
    own = [(src, lanes.lanes[src].seconds) for src in lane.follows]
    return own + [(arrival.src, arrival.lag_s) for arrival in lane.arrivals]


def _earliest_of_all(lanes: Lanes) -> list[list[float]]:
    """Per lane, the earliest start of each action, if every lane had its rank for itself."""
    starts_s: list[list[float]] = []
    for i, lane in enumerate(lanes.lanes):
        needed = _needed(lanes, i)
        starts_s.append([])
        free_s = 0.0
        for k in range(len(lane.microbatches)):
            start_s = max([free_s, *(starts_s[src][k] + lag_s for src, lag_s in needed)])
            starts_s[i].append(start_s)
            free_s = start_s + lane.seconds
    return starts_s


def _way_s(lanes: Lanes, src: int, dst: int) -> float:
    """Seconds from the start of an action to the end of the same microbatch's in a later lane."""
    farthest_s = {src: 0.0}
    for i in range(src + 1, dst + 1):
        reached = [farthest_s[j] + lag_s for j, lag_s in _needed(lanes, i) if j in farthest_s]
        if reached:
            farthest_s[i] = max(reached)
    return farthest_s[dst] + lanes.lanes[dst].seconds


def _ways(lanes: Lanes, index: int) -> dict[int, float]:
    """The longest ways over other ranks from a lane to lanes of its rank, from start to start."""
    rank = lanes.lanes[index].rank
    farthest_s = {index: 0.0}
    ways: dict[int, float] = {}
    for i in range(index + 1, len(lanes.lanes)):
        is_back = lanes.lanes[i].rank == rank
        reached = [
            farthest_s[src] + lag_s
            for src, lag_s in _needed(lanes, i)
            if src in farthest_s and not (is_back and src == index)
        ]
        if reached:
            (ways if is_back else farthest_s)[i] = max(reached)
    return ways
