"""`plan_transfer`: from two layouts to a plan.

A plan is a pure function of its arguments, so all ranks make the same one without talking. Unit
tasks, senders and order follow Zhuang et al., "On Optimizing the Communication of Model
Parallelism", MLSys 2023:

    unit tasks   section 2.2            → core.unit_tasks
    senders      Eq. 4                  → core.balance, in _sender_hosts
    order        Eq. 3, section 3.2     → core.order_jobs, in _in_order
"""

import dataclasses
import math
import operator
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import get_args

from shardspec import Layout

from crossmesh._native import core
from crossmesh.errors import PartialLayoutError, PlanError
from crossmesh.plan import Strategy, TransferPlan, UnitTask
from crossmesh.route import Route, checked_rates

Cell = tuple[Sequence[tuple[int, int]], Sequence[int], Sequence[int]]
"""Slices, devices that hold them, devices that need them."""


def plan_transfer(
    src: Layout,
    dst: Layout,
    itemsize: int,
    hosts: Mapping[int, int] | None = None,
    rates: Mapping[int, float] | None = None,
    strategy: Strategy = "broadcast",
) -> TransferPlan:
    """Plan how a tensor moves from one layout to another.

    Each slice is sent once to all devices that need it, by a host chosen so that hosts share the
    load, in an order that lets many slices move at the same time. A receiver on a host that holds
    the slice gets it there. Layouts may be uneven and meshes may overlap.

    Args:
        src: Where the tensor is; its replicas are taken to be equal.
        dst: Where it shall be; the same shape.
        itemsize: Bytes of an element.
        hosts: Host of each device of both meshes; other devices are ignored. None: each device is a
            host of its own.
        rates: Bytes per second of each host's network interface, each way; other hosts are ignored.
            None: all equal, and then their value does not matter.
        strategy: "broadcast" sends a slice once to all its receivers; "send_recv" once to each, the
            baseline of section 3.1.

    Returns:
        The plan; equal arguments give equal plans in every process.

    Raises:
        PartialLayoutError: a layout holds partial sums.
        PlanError: a layout is strided or padded, the shapes differ, `itemsize` is not positive, a
            device has no host or a host no finite positive rate, the strategy is unknown, or the
            tensor has 2**63 bytes or more.

    Examples:
        >>> from shardspec import Layout, Mesh, Spec
        >>> rows = Layout((4, 4), Mesh((2,), ("x",), (0, 1)), Spec.parse("S0R"))
        >>> columns = Layout((4, 4), Mesh((2,), ("x",), (2, 3)), Spec.parse("RS0"))
        >>> print(plan_transfer(rows, columns, itemsize=4))
        S0R -> RS0 of (4, 4), broadcast
          0: [0:2, 0:2] 0 -> 2
          1: [2:4, 2:4] 1 -> 3
          2: [0:2, 2:4] 0 -> 3
          3: [2:4, 0:2] 1 -> 2
    """
    if strategy not in get_args(Strategy):
        known = " or ".join(map(repr, get_args(Strategy)))
        raise PlanError(f"a strategy is {known}; got {strategy!r}")
    itemsize = _check_tensor(src, dst, itemsize)
    host_of = _host_of(src, dst, hosts)
    rate_of = checked_rates(set(host_of.values()), rates)

    one_receiver = strategy == "send_recv"
    cells = core.unit_tasks(src.shape, _shards(src), _shards(dst), host_of, one_receiver)
    tasks = _in_order(_with_senders(cells, itemsize, host_of, rate_of), itemsize, host_of, rate_of)
    return TransferPlan(src, dst, itemsize, strategy, tuple(sorted(host_of.items())), tasks)


def _check_tensor(src: Layout, dst: Layout, itemsize: int) -> int:
    for side, layout in (("source", src), ("destination", dst)):
        if not layout.is_contiguous or "padded" in layout.rules:
            raise PlanError(
                "a transfer moves shards of one block without padding; got the strided or padded "
                f"{side} {layout}; reshard on that mesh before, or after, the transfer"
            )
        if layout.spec.is_partial:
            raise PartialLayoutError(
                f"a transfer copies, it cannot add up partial sums; got the {side} spec "
                f"{layout.spec}; reduce on that mesh before, or reduce to it after, the transfer"
            )
    if src.shape != dst.shape:
        raise PlanError(f"both layouts are of one tensor; got shapes {src.shape} and {dst.shape}")
    itemsize = operator.index(itemsize)
    if itemsize < 1:
        raise PlanError(f"an element has at least one byte; got itemsize={itemsize}")
    if math.prod(size for size in src.shape if size) * itemsize >= 2**63:
        raise PlanError(
            f"a tensor has fewer than 2**63 bytes; got shape={src.shape} and itemsize={itemsize}"
        )
    return itemsize


def _host_of(src: Layout, dst: Layout, hosts: Mapping[int, int] | None) -> dict[int, int]:
    devices = sorted({*src.mesh.device_ids, *dst.mesh.device_ids})
    if hosts is None:
        return {device: device for device in devices}
    missing = [device for device in devices if device not in hosts]
    if missing:
        raise PlanError(f"every device of both meshes needs a host; hosts lacks {missing}")
    return {device: operator.index(hosts[device]) for device in devices}


def _shards(layout: Layout) -> list[tuple[int, list[tuple[int, int]]]]:
    return [
        (device, [(part.start, part.stop) for part in layout.slices(device)])
        for device in layout.mesh.device_ids
    ]


def _sender_hosts(
    cells: Sequence[Cell], itemsize: int, host_of: Mapping[int, int], rate_of: Mapping[int, float]
) -> list[int]:
    """Eq. 4 chooses the host of each slice that crosses the network; the others stay on theirs."""
    chosen = [host_of[receivers[0]] for _, _, receivers in cells]
    holders = [sorted({host_of[device] for device in senders}) for _, senders, _ in cells]
    crossing = [index for index, host in enumerate(chosen) if host not in holders[index]]
    balanced = core.balance(
        [math.prod(b - a for a, b in cells[index][0]) * itemsize for index in crossing],
        [holders[index] for index in crossing],
        [sorted({host_of[device] for device in cells[index][2]}) for index in crossing],
        rate_of,
    )
    for index, host in zip(crossing, balanced, strict=True):
        chosen[index] = host
    return chosen


def _with_senders(
    cells: Sequence[Cell], itemsize: int, host_of: Mapping[int, int], rate_of: Mapping[int, float]
) -> list[UnitTask]:
    """On its host, a slice is sent by the device that has sent least so far (then the lowest)."""
    sent: defaultdict[int, int] = defaultdict(int)
    tasks: list[UnitTask] = []
    sender_hosts = _sender_hosts(cells, itemsize, host_of, rate_of)
    for (slices, senders, receivers), host in zip(cells, sender_hosts, strict=True):
        on_host = [device for device in senders if host_of[device] == host]
        sender = min(on_host, key=lambda device: (sent[device], device))
        task = UnitTask(len(tasks), tuple(slices), tuple(senders), sender, tuple(receivers))
        sent[sender] += task.n_bytes(itemsize) if task.recipients else 0
        tasks.append(task)
    return tasks


def _in_order(
    tasks: Sequence[UnitTask],
    itemsize: int,
    host_of: Mapping[int, int],
    rate_of: Mapping[int, float],
) -> tuple[UnitTask, ...]:
    routes = [Route.from_devices(task.sender, task.receivers, host_of) for task in tasks]
    ports = [route.ports for route in routes]
    number = {port: index for index, port in enumerate(sorted(set(chain.from_iterable(ports))))}
    order = core.order_jobs(
        [
            route.duration_s(task.n_bytes(itemsize), rate_of)
            for task, route in zip(tasks, routes, strict=True)
        ],
        [[number[port] for port in group] for group in ports],
        [1 + len(task.receivers) for task in tasks],
    )
    return tuple(
        dataclasses.replace(tasks[position], index=index) for index, position in enumerate(order)
    )
