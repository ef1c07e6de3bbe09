"""Delays weight gradients, so that they run while a rank waits for transfers.

A whole backward produces two gradients, and only the gradient of the input (I) is sent on. So it is
sent as soon as it is ready, and the weight gradient (W) runs during the transfer, or later, where
the rank would wait for another transfer. The data that a W needs stays in memory until it runs, so
no W is delayed for longer than it is useful. With the cost model, and without changing the orders
of F and I:

1. Every W is delayed as far as possible: it runs where its rank would wait, and at the end. We try
   both to run it and not to run it in waits that are shorter than the W, and also not to delay at
   all. The fastest of these determines the time T of the step.
2. Each F and I gets a latest start, computed backwards from T: the actions that need it must start
   in time for T, and so must all remaining actions of its rank, one after the other, which include
   the W of every I among them.
3. Each rank runs F and I in order. Before each of them it runs a W that is due, if the F or I can
   then still start in time. So a W is delayed only where the step would otherwise take longer.

Step 3 considers one W and one action at a time, so it can run out of waits for the remaining W, and
end after T. In this case, new latest starts are computed with each W in its place in the fastest
schedule of step 1, and each W runs at this place or earlier. This always ends in time, but can
delay some W for longer than necessary.

All of this is linear in the number of actions. It assumes that computing and sending overlap. The
result is never slower than any schedule of step 1, nor than the input schedule.

Reference:
    Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023, section 4:
    "we use a simple cost model to estimate the compute and communication time and delay the least
    to cover all communications". The paper says no more about it; these steps are ours.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from math import inf

from pipesched.base.action import Action
from pipesched.base.checks import check_kind
from pipesched.base.edge import ENDPOINTS, Endpoint
from pipesched.base.kind import Kind
from pipesched.errors import ArgumentError
from pipesched.schedule.costs import Costs
from pipesched.schedule.schedule import Schedule
from pipesched.simulation.simulate import simulate

_TOLERANCE = 1e-9  # relative: sums of the same seconds in another order

_Place = tuple[Endpoint, int]
"""An endpoint of edges, and the microbatch."""

_MayRun = Callable[[Action, float, float, float, int], bool]
"""Whether a weight gradient may run before an action.

Arguments: the action, when its rank is free, when the action could start, the seconds of the weight
gradient, and how many weight gradients have run on the rank.
"""


def delay_weight_gradients(schedule: Schedule, costs: Costs) -> Schedule:
    """The schedule with each weight gradient delayed to where it hides transfers.

    The order of forwards and input gradients stays the same.

    Args:
        schedule: A schedule with backwards, whole or split, and without sends, receives and
            reductions (`pipesched.with_communication` adds them afterwards).
        costs: Seconds and links of its stages and edges.

    Raises:
        ArgumentError: The schedule has no backwards, or has sends, receives or reductions; or the
            costs are for other stages or edges.
        ScheduleError: `pipesched.check` refuses the schedule.

    Examples:
        >>> from pipesched import make
        >>> eager, costs = make("eager-1f1b", 4, 8), Costs(1.0, 2.0, latency_s=0.5)
        >>> simulate(eager, costs).makespan_s
        36.0
        >>> simulate(delay_weight_gradients(eager, costs), costs).makespan_s
        28.5
    """
    check_kind("schedule", schedule, Schedule)
    if not schedule.backward or schedule.communicates or schedule.updates:
        raise ArgumentError(
            "weight gradients are delayed in a schedule with only forwards and backwards; got "
            f"{schedule.name} with backward={schedule.backward}, "
            f"communicates={schedule.communicates} and updates={schedule.updates}"
        )
    simulate(schedule, costs)  # raises the errors of the arguments
    problem = _Problem(schedule, costs)
    candidates = [
        problem.ordered(lambda action, free_s, ready_s, w, n_run: True),
        problem.ordered(lambda action, free_s, ready_s, w, n_run: free_s < ready_s),
        problem.ordered(lambda action, free_s, ready_s, w, n_run: free_s + w <= ready_s),
        schedule,
    ]
    fastest = min(candidates, key=lambda candidate: simulate(candidate, costs).makespan_s)
    limit_s = simulate(fastest, costs).makespan_s * (1 + _TOLERANCE)
    latest_s = problem.latest_starts(limit_s)
    least = problem.ordered(
        lambda action, free_s, ready_s, w, n_run: max(free_s + w, ready_s) <= latest_s[action]
    )
    if simulate(least, costs).makespan_s <= limit_s * (1 + _TOLERANCE):
        return least
    n_before, placed_s = problem.places(fastest)
    latest_s = problem.latest_starts(limit_s, placed_s)
    less = problem.ordered(
        lambda action, free_s, ready_s, w, n_run: (
            n_run < n_before[action] or max(free_s + w, ready_s) <= latest_s[action]
        )
    )
    in_time = simulate(less, costs).makespan_s <= limit_s * (1 + _TOLERANCE)
    return less if in_time else fastest


class _Problem:
    """The actions of a schedule without weight gradients, and the messages between them."""

    def __init__(self, schedule: Schedule, costs: Costs) -> None:
        self.schedule = schedule
        n = schedule.n_stages
        self.rows = [
            [_split(action) for action in row if action.kind is not Kind.WEIGHT_GRADIENT]
            for row in schedule.ranks
        ]
        kinds = {action.kind for row in self.rows for action in row}
        self.seconds = {kind: costs.seconds(kind, n) for kind in kinds}
        self.weight_s = costs.seconds(Kind.WEIGHT_GRADIENT, n)
        self.gives: dict[Endpoint, list[tuple[Endpoint, float, float]]] = defaultdict(list)
        for edge in schedule.edges:
            self.gives[edge.src].append((edge.dst, *costs.link_s(edge)))
        self.n_needs = Counter(edge.dst for edge in schedule.edges)
        self.in_time: list[Action] = []
        """All actions in an order in which each comes after those that it waits for; set by
        `ordered`."""

    def ordered(self, may_run: _MayRun) -> Schedule:
        """The schedule with all actions as early as possible, and weight gradients where they may.

        The oldest weight gradients run first, and the remaining ones at the end.
        """
        rank_of = self.schedule.placement.rank
        arrived: defaultdict[_Place, list[float]] = defaultdict(list)
        link_free_s: defaultdict[tuple[int, int], float] = defaultdict(float)
        heads, free_s = [0] * len(self.rows), [0.0] * len(self.rows)
        due: list[deque[Action]] = [deque() for _ in self.rows]
        orders: list[list[Action]] = [[] for _ in self.rows]
        n_run = [0] * len(self.rows)
        in_time = []
        todo = list(range(len(self.rows)))
        while todo:
            rank = todo.pop()
            row, order = self.rows[rank], orders[rank]
            while heads[rank] < len(row):
                action = row[heads[rank]]
                here, m = _endpoint(action), action.one_microbatch
                if len(arrived[here, m]) < self.n_needs[here]:
                    break
                ready_s = max(arrived[here, m], default=0.0)
                while due[rank]:
                    w = self.weight_s[due[rank][0].stage]
                    if not may_run(action, free_s[rank], ready_s, w, n_run[rank]):
                        break
                    order.append(due[rank].popleft())
                    free_s[rank] += w
                    n_run[rank] += 1
                free_s[rank] = max(free_s[rank], ready_s) + self.seconds[action.kind][action.stage]
                heads[rank] += 1
                order.append(action)
                in_time.append(action)
                if action.kind is Kind.INPUT_GRADIENT:
                    due[rank].append(replace(action, kind=Kind.WEIGHT_GRADIENT))
                for dst, transfer_s, latency_s in self.gives[here]:
                    arrival_s, reader = free_s[rank], rank_of(dst[1], m)
                    if reader != rank:
                        left_s = max(arrival_s, link_free_s[rank, reader]) + transfer_s
                        link_free_s[rank, reader] = left_s
                        arrival_s = left_s + latency_s
                    arrived[dst, m].append(arrival_s)
                    todo.append(reader)
        self.in_time = in_time
        ranks = tuple((*order, *left) for order, left in zip(orders, due, strict=True))
        return replace(self.schedule, ranks=ranks)

    def places(self, schedule: Schedule) -> tuple[dict[Action, int], dict[Action, float]]:
        """The positions of a schedule's weight gradients relative to its other actions.

        Returns:
            For each other action, how many weight gradients run on its rank before it, and the
            seconds of those that follow it directly.
        """
        n_before: dict[Action, int] = {}
        after_s: dict[Action, float] = defaultdict(float)
        for row in filter(None, schedule.ranks):
            count, other = 0, row[0]
            for action in row:
                if action.kind is not Kind.WEIGHT_GRADIENT:
                    other = _split(action)
                    n_before[other] = count
                if action.kind in (Kind.WEIGHT_GRADIENT, Kind.BACKWARD):
                    count += 1
                    after_s[other] += self.weight_s[action.stage]
        return n_before, after_s

    def latest_starts(
        self, makespan_s: float, placed_s: dict[Action, float] | None = None
    ) -> dict[Action, float]:
        """The latest start of each action with which the step ends at `makespan_s`.

        Args:
            makespan_s: The end of the step.
            placed_s: For each action, the seconds of the weight gradients that follow it directly.
                If None, weight gradients may run at any time after their input gradients.
        """
        rank_of = self.schedule.placement.rank
        latest_s: dict[Action, float] = {}
        needed_s: dict[_Place, float] = {}
        link_next_s: defaultdict[tuple[int, int], float] = defaultdict(lambda: inf)
        next_s = [inf] * len(self.rows)
        end_s = [makespan_s] * len(self.rows)
        for action in reversed(self.in_time):
            here, m = _endpoint(action), action.one_microbatch
            rank = rank_of(action.stage, m)
            if placed_s is not None:
                next_s[rank] -= placed_s.get(action, 0.0)
                end_s[rank] -= placed_s.get(action, 0.0)
            elif action.kind is Kind.INPUT_GRADIENT:
                end_s[rank] -= self.weight_s[action.stage]
            stop_s = min(end_s[rank], next_s[rank])
            for dst, transfer_s, latency_s in reversed(self.gives[here]):
                leave_s, reader = needed_s[dst, m], rank_of(dst[1], m)
                if reader != rank:
                    leave_s = min(leave_s - latency_s, link_next_s[rank, reader]) - transfer_s
                    link_next_s[rank, reader] = leave_s
                stop_s = min(stop_s, leave_s)
            seconds = self.seconds[action.kind][action.stage]
            end_s[rank] -= seconds
            latest_s[action] = next_s[rank] = needed_s[here, m] = stop_s - seconds
        return latest_s


def _endpoint(action: Action) -> Endpoint:
    """The endpoint of an action's edges; that of a recomputation has no edges."""
    return ENDPOINTS.get(action.kind, action.kind), action.stage


def _split(action: Action) -> Action:
    """The input gradient of a whole backward; any other action unchanged."""
    return replace(action, kind=Kind.INPUT_GRADIENT) if action.kind is Kind.BACKWARD else action
