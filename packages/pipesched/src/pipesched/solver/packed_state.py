"""The search's view of a pipeline: lanes of equal actions.

All microbatches of a route cost the same. So it only matters how many forwards of a stage have run,
and not which ones: for every schedule there is one that takes the same time and in which every
stage runs the microbatches in order. (For each stage, give the k-th microbatch to the k-th action
that starts. By then k results have arrived, one for each of these k actions, and so the result of
the k-th microbatch is among them.) A **lane** is all actions of one kind, stage and route, in this
order.
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
    """The results that a lane needs from a lane of another rank."""

    queue: int
    """The queue that keeps the arrival times of results until they are used."""
    src: int
    """The lane that produces the results."""
    lag_s: float
    """The least seconds from the start of the producing action until its result has arrived."""


class Departure(NamedTuple):
    """The results that a lane sends to another rank."""

    queue: int
    """The queue that gets the arrival times."""
    link: int
    """The link that a message occupies."""
    transfer_s: float
    """Seconds for which a message occupies the link."""
    latency_s: float
    """Seconds from then on until it has arrived."""


@dataclass(slots=True)
class ActionLane:
    """All actions of one kind, stage and route, in order."""

    kind: Kind
    """The kind of the actions."""
    stage: int
    """Their stage."""
    rank: int
    """The rank that runs them."""
    microbatches: tuple[int, ...]
    """The microbatch of each action."""
    seconds: float
    """Seconds of one action."""
    taken: float
    """Bytes that one action takes; negative if it frees some."""
    follows: list[int] = field(default_factory=list)
    """Lanes of the same rank whose k-th action comes before the k-th of this one."""
    arrivals: list[Arrival] = field(default_factory=list)
    """The results that it needs from other ranks."""
    departures: list[Departure] = field(default_factory=list)
    """The results that it sends to other ranks."""
    depth: float = inf
    """For forwards, the most that may have run before their backwards."""
    tail_s: float = 0.0
    """The least seconds from the end of an action to the end of its microbatch."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lanes of a pipeline."""

    lanes: tuple[ActionLane, ...]
    """The lanes, each after those that it needs."""
    bounds: tuple[float, ...]
    """For each rank, the most bytes that it may hold."""
    overlap: bool
    """Whether ranks compute while they send."""
    n_links: int
    """Number of pairs of ranks between which messages are sent; each direction counts."""
    queues: tuple[tuple[float, ...], ...]
    """For each queue, the arrival times of the messages that are under way at the start; they are
    empty except for `alone`."""
    after_s: float = 0.0
    """The least seconds from the end of the last action to the end of the step; 0 except for
    `alone`."""

    def back(self, forward: ActionLane) -> int:
        """The lane that frees what a forward keeps: its whole backward or input gradient."""
        return next(
            i
            for i, lane in enumerate(self.lanes)
            if lane.kind in (Kind.BACKWARD, Kind.INPUT_GRADIENT)
            and (lane.stage, lane.microbatches) == (forward.stage, forward.microbatches)
        )

    @property
    def n_actions(self) -> int:
        """Number of actions of all lanes."""
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
        n_microbatches: Number of microbatches.
        costs: Seconds and links. Its bytes are not used, but `activations` and `weight_gradients`.
        placement: The rank that runs each stage.
        edges: The results that stages pass to each other.
        activations: Bytes held from forward to backward, per stage.
        weight_gradients: Bytes held from input gradient to weight gradient, per stage; None if
            backwards are whole.
        bounds: For each rank, the most bytes that it may hold.

    Raises:
        ArgumentError: The costs are for other stages, or lack one of the edges.
    """
    edge_s = {edge: costs.link_s(edge) for edge in edges}
    route_of = placement.route_of or (0,) * n_microbatches
    lanes: list[ActionLane] = []
    links: dict[tuple[int, int], int] = {}
    n_queues = 0
    for number, route in enumerate(placement.routes):
        microbatches = tuple(m for m, its_route in enumerate(route_of) if its_route == number)
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
    """For each lane of forwards, how many microbatches in flight keep its rank busy; else 0.0.

    This is the number of microbatches that the rank could run in the time from a forward to its
    backward.
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
    """These lanes with at most this share of `busy_depths` in flight, but at least one."""
    limited = [
        replace(lane, depth=max(1, ceil(share * depth))) if depth else lane
        for lane, depth in zip(lanes.lanes, busy_depths(lanes), strict=True)
    ]
    return replace(lanes, lanes=tuple(limited))


def fitting_share(lanes: Lanes) -> float:
    """The largest share of `busy_depths`, at most 1, that always fits into all ranks' memory."""

    def fits(share: float) -> bool:
        needed = [0.0] * len(lanes.bounds)
        for lane in with_depths(lanes, share).lanes:
            if lane.depth < inf:
                needed[lane.rank] += lane.taken * lane.depth
        return all(n <= bound for n, bound in zip(needed, lanes.bounds, strict=True))

    if fits(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(8):  # to a precision of 1/256, which is less than a microbatch for most depths
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def memory_bound_s(lanes: Lanes) -> float:
    """A lower bound of the step's time, as every rank has to hold every microbatch for some time.

    From its forward to its backward a microbatch is in flight, and takes bytes of the rank's
    memory. The sum of bytes times seconds over all microbatches is at most the memory times the
    seconds from the rank's first forward to the end of the last action that frees bytes. If every
    microbatch takes and frees `a` bytes, and c of them fit, then the memory cannot fill faster than
    forwards run, nor empty faster than the freeing actions run. So a c (c - 1) / 2 bytes times the
    seconds of both actions are never used.
    """
    starts_s = _earliest_of_all(lanes)
    best_s = 0.0
    for rank, bound in enumerate(lanes.bounds):
        on_rank = [
            i for i, lane in enumerate(lanes.lanes) if lane.rank == rank and lane.microbatches
        ]
        takers = [i for i in on_rank if lanes.lanes[i].taken > 0]
        givers = [lanes.lanes[i] for i in on_rank if lanes.lanes[i].taken < 0]
        if not takers or not givers or bound == inf:
            continue
        used = 0.0
        for i in on_rank:
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
        head_s = min(starts_s[i][0] for i in on_rank)
        best_s = max(best_s, head_s + used / bound + min(giver.tail_s for giver in givers))
    return best_s


def alone(lanes: Lanes, rank: int) -> Lanes:
    """The lanes of one rank, as if all other ranks had unlimited devices and memory.

    Then results come back from other ranks as early as possible, so no schedule of the whole
    pipeline takes less time than the best schedule of these lanes. This bound contains what the
    memory limit costs: with few microbatches in flight, the rank is idle.
    """
    ends = [len(lane.microbatches) for lane in lanes.lanes]
    on_rank = [i for i, lane in enumerate(lanes.lanes) if lane.rank == rank]
    new = {i: number for number, i in enumerate(on_rank)}
    kept = [
        replace(
            lanes.lanes[i],
            rank=0,
            follows=[new[src] for src in lanes.lanes[i].follows],
            arrivals=[],
            departures=[],
        )
        for i in on_rank
    ]
    queues: list[tuple[float, ...]] = []
    starts_s = _earliest_of_all(lanes)
    for i in on_rank:
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
    """The lanes of one route, without what they need of each other."""
    up, down = range(len(route)), list(reversed(range(len(route))))
    steps = [(Kind.FORWARD, stage, activations[stage]) for stage in up]
    if weight_gradients is None:
        steps += [(Kind.BACKWARD, stage, -activations[stage]) for stage in down]
    else:
        for stage in down:
            taken = weight_gradients[stage] - activations[stage]
            steps.append((Kind.INPUT_GRADIENT, stage, taken))
        steps += [(Kind.WEIGHT_GRADIENT, stage, -weight_gradients[stage]) for stage in down]
    seconds = {kind: costs.seconds(kind, len(route)) for kind, _, _ in steps}
    return [
        ActionLane(kind, stage, route[stage], microbatches, seconds[kind][stage], taken)
        for kind, stage, taken in steps
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
    """The lanes that a lane needs, each with the least seconds between the starts of actions.

    They are from the start of an action of the needed lane to that of the same microbatch here.
    """
    lane = lanes.lanes[index]
    of_same_rank = [(src, lanes.lanes[src].seconds) for src in lane.follows]
    return of_same_rank + [(arrival.src, arrival.lag_s) for arrival in lane.arrivals]


def _earliest_of_all(lanes: Lanes) -> list[list[float]]:
    """For each lane, the earliest start of each action, if every lane had a rank of its own."""
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
    """The least seconds from the start of an action to the end of one in a later lane.

    Both are of the same microbatch.
    """
    farthest_s = {src: 0.0}
    for i in range(src + 1, dst + 1):
        reached = [farthest_s[j] + lag_s for j, lag_s in _needed(lanes, i) if j in farthest_s]
        if reached:
            farthest_s[i] = max(reached)
    return farthest_s[dst] + lanes.lanes[dst].seconds


def _ways(lanes: Lanes, index: int) -> dict[int, float]:
    """For each later lane of the same rank, the longest path to it over other ranks, in seconds.

    The path is from the start of an action to the start of that of the later lane.
    """
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
