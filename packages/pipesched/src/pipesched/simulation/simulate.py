"""Run a schedule on paper: when does every action start and stop?

The model. A rank runs its actions in order, one at a time, each as soon as all that its edges
bring has arrived. Between every two ranks there is one link a direction (full duplex); it carries
one message at a time, in the order in which they are sent. Links do not slow each other down, so
hosts that share a network card are not modelled here: price that into the costs.

A schedule without sends and receives sends every result when it is made. In one with them, a
message leaves when its send's turn comes; a send does not wait for its receiver. A receive takes no
time: it says where the message may come, and the action that uses it waits until it has.

Copies of a stage, on several ranks, reduce their gradients together: all start when the last can.
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

    Takes time linear in the actions and their edges (`bench` has the figures).

    Args:
        schedule: Any schedule that `check` accepts.
        costs: Of its stages and edges. Without `overlap`, a send blocks its rank until it has
            arrived, but no rank until it is received: so 1F1B would deadlock.

    Raises:
        ScheduleError: `check` refuses the schedule.
        ArgumentError: Costs of another number of stages, without one of the schedule's edges, or
            without a backward that the schedule has.

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
        # By route and endpoint: the edges from other ranks, and those to them with the receiver.
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
        # A message is edge number * n_microbatches + microbatch: hashing edges would take longer
        # than all the rest.
        n_messages = len(schedule.edges) * schedule.n_microbatches
        self.arrived_s: list[float | None] = [None] * n_messages
        self.waiting: dict[int, int] = {}  # by message: the rank that waits for it
        self.reached_s: dict[int, dict[int, float]] = {}  # by stage, then rank: its reduction
        self.ready = list(reversed(range(n_ranks)))
        self.events: list[list[Event]] = [[] for _ in range(n_ranks)]
        self.transfers: list[tuple[float, int, Transfer]] = []

    def timeline(self) -> Timeline:
        while self.ready:
            self.advance(self.ready.pop())
        if list(map(len, self.events)) != list(map(len, self.schedule.ranks)):
            raise InternalError(
                f"a schedule that passes check runs to its end; got {self.schedule.name}, of which "
                f"the ranks ran {list(map(len, self.events))} actions"
            )
        self.transfers.sort(key=lambda item: item[:2])
        return Timeline(
            self.schedule,
            self.costs,
            tuple(event for events in self.events for event in events),
            tuple(transfer for *_, transfer in self.transfers),
        )

    def advance(self, rank: int) -> None:
        """Run the rank's actions until one has to wait."""
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
        """When all copies of the stage can reduce; None, and they wait, if that is not known."""
        copies = self.schedule.placement.ranks_of(stage)
        reached_s = self.reached_s.setdefault(stage, {})
        if rank not in reached_s:
            reached_s[rank] = self.rank_free_s[rank]
            if len(reached_s) == len(copies):
                self.ready += [copy for copy in copies if copy != rank]
        return max(reached_s.values()) if len(reached_s) == len(copies) else None

    def messages(self, action: Action) -> tuple[list[int], list[tuple[int, int]]]:
        """Those that the action waits for, and those that it sends, with their receivers."""
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

    def send(self, src: int, dst: int, message: int, made_s: float) -> None:
        number, microbatch = divmod(message, self.schedule.n_microbatches)
        transfer_s, latency_s = self.link_s[number]
        start_s = max(made_s, self.link_free_s[src][dst])
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
