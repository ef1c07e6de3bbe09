"""Simulates a schedule: when each action starts and stops.

The model: a rank runs its actions in order, one at a time, each as soon as the messages of all its
edges have arrived. Between every two ranks there is one link for each direction (full duplex). It
carries one message at a time, in the order in which they are sent. Links do not slow each other
down, so hosts that share a network card are not modelled; include this effect in the costs.

If a schedule has no sends and receives, every result is sent when it is produced. If it has them, a
message leaves when its send is reached; a send does not wait for its receiver. A receive takes no
time: it says from where on the message may arrive, and the action that uses the message waits for
it.

Copies of a stage, on several ranks, reduce their gradients together: all start when the last of
them can.
"""

from __future__ import annotations

from pipesched.base.action import Action
from pipesched.base.checks import check_kind
from pipesched.base.edge import ENDPOINTS, Endpoint
from pipesched.base.event import Event, Transfer
from pipesched.base.kind import Kind
from pipesched.errors import InternalError
from pipesched.judge.check import check
from pipesched.schedule.costs import Costs
from pipesched.schedule.schedule import Schedule
from pipesched.simulation.timeline import Timeline


def simulate(schedule: Schedule, costs: Costs) -> Timeline:
    """The timeline of one step.

    It takes time linear in the number of actions and their edges (docs/benchmarks.md).

    Args:
        schedule: Any schedule that `check` accepts.
        costs: The costs of its stages and edges. Without `overlap`, a send blocks its rank until
            the message has arrived, but not until it is received, because 1F1B would deadlock then.

    Raises:
        ScheduleError: `check` refuses the schedule.
        ArgumentError: The costs are for another number of stages, or lack an edge or a backward
            that the schedule has.

    Examples:
        >>> from pipesched import make
        >>> simulate(make("1f1b", 4, 8), Costs(1.0, 2.0, latency_s=0.5)).makespan_s
        41.0
    """
    check_kind("costs", costs, Costs)
    check(schedule)
    return _Run(schedule, costs).timeline()


class _Run:
    """The state of one simulation."""

    def __init__(self, schedule: Schedule, costs: Costs) -> None:
        self.schedule, self.costs = schedule, costs
        n_ranks = len(schedule.ranks)
        kinds = {a.kind for actions in schedule.ranks for a in actions if a.edge is None}
        self.seconds = {kind: costs.seconds(kind, schedule.n_stages) for kind in kinds}
        self.link_s = [costs.link_s(edge) for edge in schedule.edges]
        self.number_of = {edge: number for number, edge in enumerate(schedule.edges)}
        self.communicates = schedule.communicates
        routes = schedule.placement.routes
        self.route_of = schedule.placement.route_of or (0,) * schedule.n_microbatches
        # For each route and endpoint: the edges from other ranks, and those to other ranks with the
        # receiver.
        self.incoming: list[dict[Endpoint, list[int]]] = [{} for _ in routes]
        self.outgoing: list[dict[Endpoint, list[tuple[int, int]]]] = [{} for _ in routes]
        for route, outgoing, incoming in zip(routes, self.outgoing, self.incoming, strict=True):
            for number, edge in enumerate(schedule.edges):
                src, dst = route[edge.src[1]], route[edge.dst[1]]
                if src != dst:
                    outgoing.setdefault(edge.src, []).append((number, dst))
                    incoming.setdefault(edge.dst, []).append(number)
        self.rank_free_s = [0.0] * n_ranks
        self.link_free_s = [[0.0] * n_ranks for _ in range(n_ranks)]
        # A message has the number edge number * n_microbatches + microbatch, because hashing edges
        # would take longer than all other work.
        n_messages = len(schedule.edges) * schedule.n_microbatches
        self.arrived_s: list[float | None] = [None] * n_messages
        self.waiting: dict[int, int] = {}  # by message, the rank that waits for it
        self.reached_s: dict[int, dict[int, float]] = {}  # reductions reached, by stage and rank
        self.ready = list(reversed(range(n_ranks)))
        self.events: list[list[Event]] = [[] for _ in range(n_ranks)]
        self.transfers: list[tuple[float, int, Transfer]] = []

    def timeline(self) -> Timeline:
        while self.ready:
            self.advance(self.ready.pop())
        if list(map(len, self.events)) != list(map(len, self.schedule.ranks)):
            raise InternalError(
                f"a schedule that passes check runs to its end; got {self.schedule.name}, whose "
                f"ranks ran {list(map(len, self.events))} actions"
            )
        self.transfers.sort(key=lambda item: item[:2])
        return Timeline(
            self.schedule,
            self.costs,
            tuple(event for events in self.events for event in events),
            tuple(transfer for *_, transfer in self.transfers),
        )

    def advance(self, rank: int) -> None:
        """Run the actions of the rank until one has to wait."""
        actions, events = self.schedule.ranks[rank], self.events[rank]
        for position in range(len(events), len(actions)):
            action = actions[position]
            incoming, outgoing = self.messages(action)
            start_s = self.rank_free_s[rank]
            for message in incoming:
                arrived_s = self.arrived_s[message]
                if arrived_s is None:
                    self.waiting[message] = rank
                    return
                start_s = max(start_s, arrived_s)
            if action.kind is Kind.REDUCE:
                reached_s = self.reach(rank, action.stage)
                if reached_s is None:
                    return
                start_s = reached_s
            stop_s = start_s
            if action.edge is None:
                stop_s += self.seconds[action.kind][action.stage]
            self.rank_free_s[rank] = stop_s
            for message, receiver in outgoing:
                self.send(rank, receiver, message, stop_s)
            if action.kind is Kind.SEND:
                stop_s = self.rank_free_s[rank]
            events.append(Event(rank, action, start_s, stop_s))

    def reach(self, rank: int, stage: int) -> float | None:
        """When all copies of the stage can reduce; None if this is not known yet, and they wait."""
        copies = self.schedule.placement.ranks_of(stage)
        reached_s = self.reached_s.setdefault(stage, {})
        if rank not in reached_s:
            reached_s[rank] = self.rank_free_s[rank]
            if len(reached_s) == len(copies):
                self.ready += [copy for copy in copies if copy != rank]
        return max(reached_s.values()) if len(reached_s) == len(copies) else None

    def messages(self, action: Action) -> tuple[list[int], list[tuple[int, int]]]:
        """The messages that the action waits for, and those that it sends, with their receivers."""
        microbatch, n_microbatches = action.microbatch, self.schedule.n_microbatches
        if microbatch is None:
            return [], []
        if action.kind is Kind.SEND:
            edge = action.moved_over
            message = self.number_of[edge] * n_microbatches + microbatch
            return [], [(message, self.schedule.placement.rank(edge.dst[1], microbatch))]
        if action.kind not in ENDPOINTS:
            return [], []
        route, end = self.route_of[microbatch], (ENDPOINTS[action.kind], action.stage)
        incoming = self.incoming[route].get(end, ())
        outgoing = () if self.communicates else self.outgoing[route].get(end, ())
        return (
            [number * n_microbatches + microbatch for number in incoming],
            [(number * n_microbatches + microbatch, receiver) for number, receiver in outgoing],
        )

    def send(self, src: int, dst: int, message: int, produced_s: float) -> None:
        """Send a message that was produced at `produced_s`."""
        number, microbatch = divmod(message, self.schedule.n_microbatches)
        transfer_s, latency_s = self.link_s[number]
        start_s = max(produced_s, self.link_free_s[src][dst])
        left_s = start_s + transfer_s
        stop_s = left_s + latency_s
        self.link_free_s[src][dst] = left_s
        if not self.costs.overlap:
            self.rank_free_s[src] = max(self.rank_free_s[src], stop_s)
        edge = self.schedule.edges[number]
        self.transfers.append((start_s, src, Transfer(edge, microbatch, start_s, left_s, stop_s)))
        self.arrived_s[message] = stop_s
        if message in self.waiting:
            self.ready.append(self.waiting.pop(message))
