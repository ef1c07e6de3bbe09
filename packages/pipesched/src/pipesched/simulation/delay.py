"""Backward weight delaying: weight gradients run while a rank waits for transfers.

A whole backward makes two gradients, and only that of the inputs (I) is sent on; so it is sent as
soon as it is made, and the weight gradient (W) runs beside the transfer, or later, where the rank
would wait for another one. What a W needs is in memory until then, so none is put off further than
is of use. By the cost model, with the orders of F and I as they are:

1. Every W is put off as far as it can: it runs where its rank would wait, and at the end. Whether
   it also runs in waits shorter than itself is tried both ways, and so is not putting off at all.
   The fastest says how long the step takes, T.
2. Each F and I has a latest start, from T backwards: what needs it must start in time for T, and
   so must, one after the other, all that its rank still has to do, with the W of every I in it.
3. Each rank runs F and I in order, and a W that is due before the next of them if that still starts
   in time: so a W is put off only where the step would take longer if it were not.

Step 3 looks at one W and one action at a time, so it can run out of waits for the W that are left,
and end after T. Then its latest starts leave the W of the fastest of step 1 in their places, and W
run there or before; that always ends in time, but can put some off for longer than need be.

All of this is linear in the actions, and takes computing and sending to overlap. The result is
never slower than any of step 1, nor than the schedule given.

Reference:
    Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023, section 4:
    "we use a simple cost model to estimate the compute and communication time and delay the least
    to cover all communications". It says no more; these steps are ours.
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

_TOLERANCE = 1e-9  # sums of the same seconds in another order

_Place = tuple[Endpoint, int]
"""Where edges begin and end, and of which microbatch."""

_MayRun = Callable[[Action, float, float, float, int], bool]
"""Whether a weight gradient may run before an action, given when its rank is free, when the action
could start, how long the weight gradient takes, and how many have run on the rank."""


def delay_weight_gradients(schedule: Schedule, costs: Costs) -> Schedule:
    """The same order of forwards and input gradients, with every weight gradient where it fits.

    Args:
        schedule: With backwards, whole or in two parts; without sends, receives and reductions
            (add them afterwards: `pipesched.with_communication`).
        costs: Seconds and links of its stages and edges.

    Raises:
        ArgumentError: A schedule without backwards or with communication, or costs that are not of
            its stages and edges.
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
            "weight gradients are put off in a schedule of forwards and backwards only; got "
            f"{schedule.name} with backward={schedule.backward}, "
            f"communicates={schedule.communicates} and updates={schedule.updates}"
        )
    simulate(schedule, costs)  # refuses what is wrong with them
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
    """A schedule's actions without weight gradients, and what passes between them."""

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
        """Every action after all that it waits for; known after the first `ordered`."""

    def ordered(self, may_run: _MayRun) -> Schedule:
        """Everything as early as it can, with the weight gradients that may run before an action.

        The oldest go first; what is left when the actions are through runs at the end.
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
                for there, transfer_s, latency_s in self.gives[here]:
                    arrival_s, reader = free_s[rank], rank_of(there[1], m)
                    if reader != rank:
                        left_s = max(arrival_s, link_free_s[rank, reader]) + transfer_s
                        link_free_s[rank, reader] = left_s
                        arrival_s = left_s + latency_s
                    arrived[there, m].append(arrival_s)
                    todo.append(reader)
        self.in_time = in_time
        ranks = tuple((*order, *left) for order, left in zip(orders, due, strict=True))
        return replace(self.schedule, ranks=ranks)

    def places(self, schedule: Schedule) -> tuple[dict[Action, int], dict[Action, float]]:
        """Where a schedule has its weight gradients, for each other action.

        Returns:
            How many have run on its rank before it, and seconds of those that follow it directly.
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
        """When each action has to start at the latest for the step to end in time.

        Args:
            makespan_s: When the step ends.
            placed_s: How long the weight gradients take that follow each action directly. If None,
                they are free to run at any time after their input gradient.
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
            for there, transfer_s, latency_s in reversed(self.gives[here]):
                leave_s, reader = needed_s[there, m], rank_of(there[1], m)
                if reader != rank:
                    leave_s = min(leave_s - latency_s, link_next_s[rank, reader]) - transfer_s
                    link_next_s[rank, reader] = leave_s
                stop_s = min(stop_s, leave_s)
            own_s = self.seconds[action.kind][action.stage]
            end_s[rank] -= own_s
            latest_s[action] = next_s[rank] = needed_s[here, m] = stop_s - own_s
        return latest_s


def _endpoint(action: Action) -> Endpoint:
    """What an action takes and gives over edges; a recomputation, under its own name, nothing."""
    return ENDPOINTS.get(action.kind, action.kind), action.stage


def _split(action: Action) -> Action:
    """A whole backward's part that others wait for; anything else as it is."""
    return replace(action, kind=Kind.INPUT_GRADIENT) if action.kind is Kind.BACKWARD else action
