"""`explain`: a plan as text: who sends what to whom, and when."""

import itertools
import math
from collections import Counter

from shardspec import Layout
from shardspec.amounts import bytes_text, columns, count_text, share_text

from crossmesh.base import phrases
from crossmesh.base.links import Links
from crossmesh.base.task import UnitTask
from crossmesh.report.totals import (
    Between,
    Busy,
    Timed,
    busy_s,
    bytes_between,
    gap_text,
    timed,
    total_bytes,
)
from crossmesh.transfer.plan import TransferPlan

_ROWS = 16
"""The most rows of a table that are shown; the others are only counted."""


def explain(plan: TransferPlan, links: Links | None = None) -> str:
    r"""Explain as text who sends what to whom and when, and which host's port is the bottleneck.

    Without rates, times are in units of `t`, the time in which a host sends as many bytes as all
    tensors have together. Tables show at most 16 rows.

    Args:
        plan: The plan.
        links: How fast hosts and devices are. None: the links of the plan.

    Raises:
        PlanError: A host has no rate, or its rate is below 1e-100 or above 1e100.

    Examples:
        >>> from shardspec import Layout, Mesh, Spec
        >>> from crossmesh import plan
        >>> src = Layout((4, 4), Mesh((2,), ("x",), (0, 1)), Spec.parse("S0R"))
        >>> dst = Layout((4, 4), Mesh((2,), ("x",), (2, 3)), Spec.parse("RR"))
        >>> print(explain(plan(src, dst, "float32", {0: 0, 1: 1, 2: 2, 3: 2})))
        tensor: float32 4x4, 64 B, S0R on 2 (0-1) -> RR on 2 (2-3)
        <BLANKLINE>
        2 tasks, broadcast, order ensemble: 64 B between hosts
        1 t, no plan takes less; a host sends 64 B in t
        host 2 receives 100 % of the time
        <BLANKLINE>
        host  devices  sends  busy  receives   busy
           0  0         32 B  50 %       0 B    0 %
           1  1         32 B  50 %       0 B    0 %
           2  2-3        0 B   0 %      64 B  100 %
        <BLANKLINE>
        from\to     2
              0  32 B
              1  32 B
        <BLANKLINE>
        task  begins   ends  bytes  of                from host (devices) to host (devices)
           0     0 t  0.5 t   32 B  tensor[0:2, 0:4]  0 (0) -> 2 (2-3)
           1   0.5 t    1 t   32 B  tensor[2:4, 0:4]  1 (1) -> 2 (2-3)
    """
    when = timed(plan, links)
    busy, between = busy_s(when.timeline), bytes_between(plan)
    parts = [_tensors(plan), _summary(plan, when, busy, between)]
    if plan.tasks:
        parts += [_hosts(plan, when, busy, between), _pairs(between), _tasks(plan, when)]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _tensors(plan: TransferPlan) -> list[str]:
    lines = [
        f"{tensor.name}: {tensor.dtype} {phrases.lengths(tensor.shape)}, "
        f"{bytes_text(math.prod(tensor.shape) * tensor.item_bytes)}, "
        f"{_layout(tensor.src)} -> {_layout(tensor.dst)}"
        for tensor in plan.tensors[:_ROWS]
    ]
    return lines + _more(len(plan.tensors), "tensor")


def _layout(layout: Layout) -> str:
    mesh = layout.mesh
    devices = phrases.numbers(tuple(mesh.device_ids))
    return f"{layout.spec} on {phrases.lengths(mesh.shape)} ({devices})"


def _summary(plan: TransferPlan, when: Timed, busy: Busy, between: Between) -> list[str]:
    if not plan.tasks:
        return ["nothing is sent: every device has what it needs"]
    sent = between.total()
    where = f"{bytes_text(sent)} between hosts" if sent else "all inside hosts"
    tasks = count_text(len(plan.tasks), "task")
    lines = [f"{tasks}, {plan.strategy}, order {plan.order}: {where}"]
    if when.timeline.time_s:
        t = f"; a host sends {bytes_text(total_bytes(plan))} in t" if when.in_t else ""
        lines.append(gap_text(when) + t)
    if busy:
        (host, direction), longest_s = max(busy.items(), key=lambda item: item[1])
        verb = "receives" if direction == "in" else "sends"
        lines.append(
            f"host {host} {verb} {share_text(longest_s, when.timeline.time_s)} of the time"
        )
    return lines


def _hosts(plan: TransferPlan, when: Timed, busy: Busy, between: Between) -> list[str]:
    devices: dict[int, list[int]] = {}
    for device, host in plan.hosts:
        devices.setdefault(host, []).append(device)
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    for (sender, receiver), n_bytes in between.items():
        sent[sender] += n_bytes
        received[receiver] += n_bytes
    rows = [["host", "devices", "sends", "busy", "receives", "busy"]]
    for host in sorted(devices)[:_ROWS]:
        sends, receives = (
            share_text(busy.get((host, way), 0.0), when.timeline.time_s) for way in ("out", "in")
        )
        rows.append(
            [
                str(host),
                phrases.numbers(devices[host]),
                bytes_text(sent[host]),
                sends,
                bytes_text(received[host]),
                receives,
            ]
        )
    return columns(rows, right=(0, 2, 3, 4, 5)) + _more(len(devices), "host")


def _pairs(between: Between) -> list[str]:
    """The bytes between hosts as a matrix; if that is too wide, the pairs with the most bytes."""
    senders = sorted({sender for sender, _ in between})
    receivers = sorted({receiver for _, receiver in between})
    if not between:
        return []
    if max(len(senders), len(receivers)) <= _ROWS:
        rows = [["from\\to", *map(str, receivers)]]
        for a in senders:
            sizes = [bytes_text(between[a, b]) if (a, b) in between else "" for b in receivers]
            rows.append([str(a), *sizes])
        return columns(rows, right=range(len(rows[0])))
    rows = [["from", "to", "bytes"]]
    most = sorted(between.items(), key=lambda item: (-item[1], item[0]))
    rows += [[str(a), str(b), bytes_text(n_bytes)] for (a, b), n_bytes in most[:_ROWS]]
    return columns(rows, right=(0, 1, 2)) + _more(len(between), "pair")


def _tasks(plan: TransferPlan, when: Timed) -> list[str]:
    rows = [["task", "begins", "ends", "bytes", "of", "from host (devices) to host (devices)"]]
    host_of = plan.host_of
    rows += [
        [
            str(task.index),
            *map(when.text, when.timeline.spans[task.index]),
            bytes_text(task.n_bytes),
            _pieces(plan, task),
            _path(task, host_of),
        ]
        for task in plan.tasks[:_ROWS]
    ]
    return columns(rows, right=(0, 1, 2, 3)) + _more(len(plan.tasks), "task")


def _pieces(plan: TransferPlan, task: UnitTask) -> str:
    (tensor, box), *others = task.pieces
    text = f"{plan.tensors[tensor].name}[{', '.join(f'{a}:{b}' for a, b in box)}]"
    if others:
        text += f" and {len(others):,} more"
    all_bytes = sum(
        math.prod(b - a for a, b in box) * plan.tensors[tensor].item_bytes
        for tensor, box in task.pieces
    )
    if task.n_bytes < all_bytes:
        start, end = (share_text(part, all_bytes) for part in task.part)
        text += f", {start} to {end}"
    return text


def _path(task: UnitTask, host_of: dict[int, int]) -> str:
    """The devices that add terms, joined by `+`, then the hosts that the result passes."""
    reached = [d for d in (task.sender,) if d in task.receivers] + list(task.followers)
    if len(task.terms) > 1:
        start = " + ".join(f"{host_of[d]} ({d})" for d in task.adders)
    else:
        start = f"{host_of[task.sender]} ({task.sender})"
    groups = [(host, tuple(d)) for host, d in itertools.groupby(reached, key=host_of.__getitem__)]
    hosts = [f"{host} ({phrases.numbers(devices)})" for host, devices in groups[:_HOSTS]]
    if len(groups) > _HOSTS:
        hosts.append(count_text(len(groups) - _HOSTS, "more host"))
    return " -> ".join([start, *hosts])


_HOSTS = 6
"""The most hosts of a path that are shown."""


def _more(n: int, what: str) -> list[str]:
    return [f"and {count_text(n - _ROWS, f'more {what}')}"] if n > _ROWS else []
