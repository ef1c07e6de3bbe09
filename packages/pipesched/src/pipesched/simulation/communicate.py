"""Adds to a schedule the actions in which ranks interact: sends and receives, and reductions.

All ranks list these actions along one global order of all events, so both ends of a transfer agree
on what comes before and after it. This satisfies every semantics of `pipesched.check`: in a circle
of ranks that wait for each other, one would have to wait for something later in the order; and both
ranks of a pair have their messages in this order.

The order is that of a timeline: actions are ordered by their start, and transfers by the time when
their result is produced. A send comes right after the action that produces its result. The receive
comes before all actions that the receiver starts later. This costs nothing if a receive is only
posted, and the action that uses the message waits for it (as in torch); it may delay other work if
a receive blocks its rank.
"""

from __future__ import annotations

import heapq
from dataclasses import replace

from pipesched.base.action import Action
from pipesched.base.checks import check_kind
from pipesched.base.edge import ENDPOINTS
from pipesched.base.kind import Kind
from pipesched.errors import ArgumentError
from pipesched.schedule.costs import Costs
from pipesched.schedule.schedule import Schedule
from pipesched.simulation.simulate import simulate
from pipesched.simulation.timeline import Timeline


def with_communication(schedule: Schedule, timeline: Timeline | None = None) -> Schedule:
    """The schedule with a send and a receive for every result that changes ranks.

    Args:
        schedule: A schedule without sends and receives that `check` accepts.
        timeline: The timeline of `schedule` that decides the order. If None, it is simulated with
            forwards of 1 s, backwards of 2 s, and transfers that take no time.

    Raises:
        ScheduleError: `check` refuses the schedule.
        ArgumentError: The schedule has sends and receives, or the timeline is of another schedule.

    Examples:
        >>> from pipesched import make
        >>> print(with_communication(make("1f1b", 2, 2)))
        1f1b stages=2 microbatches=2
        rank 0: F0.0 SEND_F0->F1.0 F0.1 SEND_F0->F1.1 RECV_B1->B0.0 B0.0 RECV_B1->B0.1 B0.1
        rank 1: RECV_F0->F1.0 F1.0 RECV_F0->F1.1 B1.0 SEND_B1->B0.0 F1.1 B1.1 SEND_B1->B0.1
    """
    check_kind("schedule", schedule, Schedule)
    if schedule.communicates:
        raise ArgumentError(
            f"sends and receives are added to a schedule without any; got {schedule.name} with "
            "some; remove them first by without_communication"
        )
    return _insert(schedule, timeline, transfers=True)


def with_reductions(schedule: Schedule, timeline: Timeline | None = None) -> Schedule:
    """The schedule with a reduction of each stage's gradients, right after the last gradient.

    Args:
        schedule: A schedule without reductions and updates that `check` accepts.
        timeline: As for `with_communication`. It only matters if stages have copies, which reduce
            together.

    Raises:
        ScheduleError: `check` refuses the schedule.
        ArgumentError: The schedule has reductions or updates, or is for inference; it has copies of
            stages and already has sends and receives, which must be added after the reductions; or
            the timeline is of another schedule.
    """
    check_kind("schedule", schedule, Schedule)
    if schedule.updates or not schedule.backward:
        raise ArgumentError(
            "reductions are added to a training schedule without reductions and updates; got "
            f"{schedule.name} with updates={schedule.updates} and backward={schedule.backward}"
        )
    if schedule.communicates and len(schedule.placement.routes) > 1:
        raise ArgumentError(
            "with copies of stages, reductions are added before sends and receives; got "
            f"{schedule.name} with sends and receives; remove them first by without_communication"
        )
    return _insert(schedule, timeline, reductions=True)


def without_communication(schedule: Schedule) -> Schedule:
    """The schedule without its sends and receives; the same one if it has none."""
    check_kind("schedule", schedule, Schedule)
    ranks = (tuple(a for a in actions if a.edge is None) for actions in schedule.ranks)
    return replace(schedule, ranks=tuple(ranks))


def _insert(
    schedule: Schedule,
    timeline: Timeline | None,
    *,
    transfers: bool = False,
    reductions: bool = False,
) -> Schedule:
    """Sort all actions, old and new, in one order, and distribute them to the ranks again."""
    if timeline is None:
        timeline = simulate(schedule, Costs(1.0, 2.0))
    check_kind("timeline", timeline, Timeline)
    if timeline.schedule != schedule:
        raise ArgumentError(
            "a timeline orders its own schedule; "
            f"got one of {timeline.schedule.name} for {schedule.name}"
        )
    order = _Order()
    ends: dict[tuple[Kind, int, int], tuple[int, float]] = {}  # node and stop of each endpoint
    gradients: dict[tuple[int, int], tuple[int, float]] = {}  # the last of each rank and stage
    together: dict[int, int] = {}  # for each stage, the node of its reductions
    before: dict[int, int] = {}  # for each rank, its last node so far
    for event in timeline.events:
        rank, action = event.rank, event.action
        if action.kind is Kind.REDUCE:
            if action.stage not in together:
                together[action.stage] = order.add(event.start_s, [])
            node = together[action.stage]
            order.join(node, event.start_s, (rank, action))
        else:
            node = order.add(event.start_s, [(rank, action)])
        if action.kind in ENDPOINTS:
            end = ENDPOINTS[action.kind], action.stage, action.one_microbatch
            ends[end] = node, event.stop_s
        if action.kind in (Kind.BACKWARD, Kind.WEIGHT_GRADIENT):
            gradients[rank, action.stage] = node, event.stop_s
        if rank in before:
            order.put_before(before[rank], node)
        before[rank] = node

    rank_of = schedule.placement.rank
    for edge in () if schedule.communicates else schedule.edges:
        for m in range(schedule.n_microbatches):
            src, dst = rank_of(edge.src[1], m), rank_of(edge.dst[1], m)
            if src != dst:
                producer, produced_s = ends[*edge.src, m]
                both = [(src, Action.send(edge, m)), (dst, Action.receive(edge, m))]
                node = order.add(produced_s, both if transfers else [], first=True)
                order.put_before(producer, node)
                order.put_before(node, ends[*edge.dst, m][0])
    for stage in range(schedule.n_stages) if reductions else ():
        ranks = schedule.placement.ranks_of(stage)
        last = [gradients[rank, stage] for rank in ranks if (rank, stage) in gradients]
        done_s = max(stop_s for _, stop_s in last)
        reduce = Action(Kind.REDUCE, stage)
        node = order.add(done_s, [(rank, reduce) for rank in ranks], first=True)
        for gradient, _ in last:
            order.put_before(gradient, node)
    return replace(schedule, ranks=order.of_each_rank(len(schedule.ranks)))


class _Order:
    """A topological order of actions by time: ties and delays never break a dependency.

    Each node is a set of actions at the same time: a single action, the two ends of a transfer, or
    the reductions of all copies of a stage.
    """

    def __init__(self) -> None:
        self._keys: list[tuple[float, bool]] = []
        self._items: list[list[tuple[int, Action]]] = []
        self._later: list[list[int]] = []
        self._n_earlier: list[int] = []

    def add(self, time_s: float, items: list[tuple[int, Action]], *, first: bool = False) -> int:
        """Add a node, and return its number; with `first` it comes before others of its time."""
        self._keys.append((time_s, not first))
        self._items.append(items)
        self._later.append([])
        self._n_earlier.append(0)
        return len(self._keys) - 1

    def join(self, node: int, time_s: float, item: tuple[int, Action]) -> None:
        """Add an action to a node, whose time becomes that of its latest action."""
        self._items[node].append(item)
        self._keys[node] = max(self._keys[node], (time_s, True))

    def put_before(self, earlier: int, later: int) -> None:
        """Require that one node comes before another."""
        self._later[earlier].append(later)
        self._n_earlier[later] += 1

    def of_each_rank(self, n_ranks: int) -> tuple[tuple[Action, ...], ...]:
        """The actions of each rank, in this order."""
        ready = [(*key, n) for n, key in enumerate(self._keys) if not self._n_earlier[n]]
        heapq.heapify(ready)
        ranks: list[list[Action]] = [[] for _ in range(n_ranks)]
        while ready:
            *_, node = heapq.heappop(ready)
            for rank, action in self._items[node]:
                ranks[rank].append(action)
            for later in self._later[node]:
                self._n_earlier[later] -= 1
                if not self._n_earlier[later]:
                    heapq.heappush(ready, (*self._keys[later], later))
        return tuple(map(tuple, ranks))
