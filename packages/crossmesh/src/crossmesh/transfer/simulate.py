"""`simulate`: when the tasks of a plan begin and end, by a model of the network.

The model is that of Zhuang et al., MLSys 2023, section 3. Each host communicates through one
interface, which can send and receive at the same time, and any two hosts are connected equally
well. Let `t` be the time that the bytes of a task take through the slowest interface. To reach `A`
hosts with `B` devices each, the task takes

    broadcast, in K chunks   t (1 + (A - 1) / K)
    send_recv                A B t
    local_allgather          A t
    global_allgather         t, and t (A B - 1) / (A B) more if A > 1
    signal                   as a broadcast of one byte

These are the formulas of section 3.1, with two differences: the paper has `t (1 + A / K)` for a
broadcast, which counts the first chunk of the first host twice, and rounds the time of a
global_allgather to `2 t`.

Each host takes up its tasks in the order of the plan. Each of its two ports serves one task at a
time (Eq. 3), for as long as the bytes take at the port's own rate: while the port waits for a
slower host, it serves the next task as well. In a plan of order "all_at_once", all tasks start
together and share the ports fairly.

Tasks inside a host pass between its devices at `Links.device_bytes_per_s`, by the same formulas and
without latency. For tasks that cross the network, the time inside hosts is not counted.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from crossmesh.base._native import core
from crossmesh.base.links import Links
from crossmesh.base.task import UnitTask
from crossmesh.errors import PlanError
from crossmesh.transfer.plan import TransferPlan
from crossmesh.transfer.solver import Flow, lower_bound_of

Direction = Literal["out", "in"]


class TimedHop(NamedTuple):
    """Bytes that one host sends to another."""

    task: int
    """Index of their task."""
    sender: int
    """The sending host."""
    receiver: int
    """The receiving host."""
    start_s: float
    """When the first byte leaves."""
    stop_s: float
    """When the last byte has left; it arrives a latency later."""
    n_bytes: float
    """The bytes; for a part of an all-gather they need not be a whole number."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The simulated times of a plan."""

    spans: tuple[tuple[float, float], ...]
    """Start and end of each task, in seconds; equal if the task takes no time."""
    hops: tuple[TimedHop, ...]
    """All bytes that cross the network, by task."""
    lower_bound_s: float
    """The result of the function `lower_bound_s` for the plan."""

    @property
    def time_s(self) -> float:
        """When the last task ends."""
        return max((end_s for _, end_s in self.spans), default=0.0)

    @property
    def gap(self) -> float:
        """How far `time_s` is above the lower bound: 0.05 is 5 %; 0.0 if the bound is 0.0."""
        return self.time_s / self.lower_bound_s - 1 if self.lower_bound_s else 0.0

    def uses(self, host: int, direction: Direction) -> tuple[TimedHop, ...]:
        """The hops that pass a port of a host, sorted by start."""
        hops = [hop for hop in self.hops if host == (hop.sender, hop.receiver)[direction == "in"]]
        return tuple(sorted(hops, key=lambda hop: (hop.start_s, hop.task)))

    def busy_s(self, host: int, direction: Direction) -> float:
        """The time in which a port of a host sends or receives."""
        total_s = until_s = 0.0
        for hop in self.uses(host, direction):
            total_s += max(0.0, hop.stop_s - max(until_s, hop.start_s))
            until_s = max(until_s, hop.stop_s)
        return total_s

    def idle_s(self, host: int, direction: Direction) -> float:
        """The time in which it does not, until the last task ends."""
        return self.time_s - self.busy_s(host, direction)


def simulate(plan: TransferPlan, links: Links | None = None) -> Timeline:
    """Simulate a plan: when each of its tasks begins and ends.

    Args:
        plan: The plan.
        links: How fast hosts and devices are. None: the links of the plan.

    Raises:
        PlanError: Neither `links` nor the plan says how fast hosts are, a host has no rate, or its
            rate is below 1e-100 or above 1e100.

    Examples:
        One host sends two tasks of half a second each to another host, one after the other:

        >>> from shardspec import Layout, Mesh, Spec
        >>> from crossmesh import Links, plan
        >>> src = Layout((1000,), Mesh((1,), ("x",), (0,)), Spec.parse("R"))
        >>> dst = Layout((1000,), Mesh((2,), ("x",), (1, 2)), Spec.parse("S0"))
        >>> links = Links(1000.0, device_bytes_per_s=1e9, latency_s=0.0)
        >>> timeline = simulate(plan(src, dst, "int8", {0: 0, 1: 1, 2: 1}, links))
        >>> timeline.spans, timeline.gap
        (((0.0, 0.5), (0.5, 1.0)), 0.0)
        >>> timeline.idle_s(1, "in"), timeline.idle_s(1, "out")
        (0.0, 1.0)
    """
    links = _links(plan, links)
    host_of = plan.host_of
    spans = [(0.0, 0.0)] * len(plan.tasks)
    hops: list[TimedHop] = []

    crossing = [task for task in plan.tasks if len({host_of[d] for d in task.path}) > 1]
    for task, end_s, timed in _run(plan, crossing, host_of, links):
        spans[task.index] = min(hop.start_s for hop in timed), end_s
        hops += timed
    if not math.isinf(links.device_bytes_per_s):
        inside = [task for task in plan.tasks if len({host_of[d] for d in task.path}) == 1]
        itself = {device: device for device in host_of}
        devices = Links(links.device_bytes_per_s, links.device_bytes_per_s, latency_s=0.0)
        for task, end_s, timed in _run(plan, inside, itself, devices):
            spans[task.index] = min((hop.start_s for hop in timed), default=end_s), end_s
    return Timeline(tuple(spans), tuple(hops), lower_bound_s(plan, links))


def lower_bound_s(plan: TransferPlan, links: Links | None = None) -> float:
    """A time that no plan with the same tensors, layouts, hosts and links can beat.

    Each host must receive every byte that it needs and that none of its devices holds; all bytes
    that cross the network must leave a host that holds them; and each of their copies must come
    from a host that holds or gets it (`crossmesh.transfer.solver.lower_bound_of`). Traffic inside
    hosts is not counted.

    Args:
        plan: The plan.
        links: How fast hosts are. None: the links of the plan.

    Raises:
        PlanError: Neither `links` nor the plan says how fast hosts are, or a host has no rate.
    """
    host_of = plan.host_of
    alike: defaultdict[object, list[UnitTask]] = defaultdict(list)
    for task in plan.tasks:
        alike[task.pieces].append(task)
    flows = []
    for tasks in alike.values():
        # Tasks with the same pieces may be cut at different bytes, and have different receivers.
        borders = sorted({border for task in tasks for border in task.part})
        for start, stop in pairwise(borders):
            moving = [task for task in tasks if task.part[0] <= start and stop <= task.part[1]]
            n_bytes = min(stop - start, 1) if plan.strategy == "signal" else stop - start
            terms = tuple(tuple(sorted({host_of[d] for d in term})) for term in tasks[0].terms)
            receivers = {host_of[device] for task in moving for device in task.receivers}
            flows.append(Flow(n_bytes, terms, tuple(sorted(receivers))))
    return lower_bound_of(flows, _links(plan, links))


def _links(plan: TransferPlan, links: Links | None) -> Links:
    links = links or plan.links
    if links is None:
        raise PlanError(
            "time depends on how fast hosts are; got links=None for a plan without links; pass "
            "links here, or to plan()"
        )
    return links


def _run(
    plan: TransferPlan, tasks: list[UnitTask], host_of: dict[int, int], links: Links
) -> list[tuple[UnitTask, float, list[TimedHop]]]:
    hosts = sorted({host_of[device] for task in tasks for device in task.path})
    rates = list(links.rates(hosts).values())
    number = {host: i for i, host in enumerate(hosts)}
    jobs = [
        (
            task.n_bytes,
            [number[host_of[device]] for device in task.path],
            len(task.terms),
            len(task.reduction) <= 1,
            task.strategy,
            task.n_chunks,
            task.tree,
        )
        for task in tasks
    ]
    try:
        runs = core.simulate(jobs, rates, links.latency_s, plan.order == "all_at_once")
    except ValueError as error:
        raise PlanError(str(error)) from None
    return [
        (
            task,
            end_s,
            [
                TimedHop(task.index, hosts[a], hosts[b], start_s, start_s + duration_s, n_bytes)
                for a, b, start_s, duration_s, n_bytes in hops
            ],
        )
        for task, (end_s, hops) in zip(tasks, runs, strict=True)
    ]
