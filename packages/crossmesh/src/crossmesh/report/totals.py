"""Totals of a plan for reports: times, busy ports, and bytes between hosts."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import NamedTuple

from shardspec.amounts import seconds_text

from crossmesh.base.links import Links
from crossmesh.transfer.plan import TransferPlan
from crossmesh.transfer.simulate import Direction, Timeline, simulate

Between = Counter[tuple[int, int]]
"""Bytes by (sending host, receiving host)."""

Busy = dict[tuple[int, Direction], float]
"""Seconds by (host, port)."""


class Timed(NamedTuple):
    """A timeline, and how to write its times as text."""

    timeline: Timeline
    text: Callable[[float], str]
    """Writes a time, which is in seconds or in units of `t`."""
    in_t: bool
    """Whether times are in units of `t` instead of seconds."""


def timed(plan: TransferPlan, links: Links | None) -> Timed:
    """The timeline of a plan; in units of `t` if neither `links` nor the plan has rates.

    `t` is the time in which a host sends as many bytes as all tensors have together, as in section
    3.1 of Zhuang et al., MLSys 2023.

    Raises:
        PlanError: A host has no rate, or its rate is below 1e-100 or above 1e100.
    """
    if links or plan.links:
        return Timed(simulate(plan, links), seconds_text, False)
    bytes_per_t = float(max(1, total_bytes(plan)))
    timeline = simulate(plan, Links(bytes_per_t, device_bytes_per_s=math.inf, latency_s=0.0))
    return Timed(timeline, lambda time_t: f"{time_t:.3g} t", True)


def total_bytes(plan: TransferPlan) -> int:
    """The bytes of all tensors together; replicas are counted once."""
    return sum(math.prod(tensor.shape) * tensor.item_bytes for tensor in plan.tensors)


def bytes_between(plan: TransferPlan) -> Between:
    """The bytes from each host to each other host; pairs without traffic are left out."""
    host_of = plan.host_of
    between: Between = Counter()
    for task in plan.tasks:
        for hop in task.hops:
            pair = host_of[hop.sender], host_of[hop.receiver]
            if pair[0] != pair[1] and hop.n_bytes:
                between[pair] += hop.n_bytes
    return between


def busy_s(timeline: Timeline) -> Busy:
    """The busy time of each port that is used: `Timeline.busy_s` of all ports at once."""
    total_s: defaultdict[tuple[int, Direction], float] = defaultdict(float)
    until_s: defaultdict[tuple[int, Direction], float] = defaultdict(float)
    for hop in sorted(timeline.hops, key=lambda hop: (hop.start_s, hop.task)):
        ports: tuple[tuple[int, Direction], ...] = (hop.sender, "out"), (hop.receiver, "in")
        for port in ports:
            total_s[port] += max(0.0, hop.stop_s - max(until_s[port], hop.start_s))
            until_s[port] = max(until_s[port], hop.stop_s)
    return dict(total_s)


def gap_text(timed: Timed) -> str:
    """How long a plan takes and how far that is above the lower bound, as text."""
    timeline, text, _ = timed
    if timeline.gap < _ROUNDING:
        return f"{text(timeline.time_s)}, no plan takes less"
    bound = text(timeline.lower_bound_s)
    return f"{text(timeline.time_s)}, {100 * timeline.gap:.1f} % above the lower bound of {bound}"


_ROUNDING = 5e-4
"""Gaps below this would be shown as 0.0 %."""
