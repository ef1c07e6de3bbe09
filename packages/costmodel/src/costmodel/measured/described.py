"""Makes a cluster of what the processes of a launcher have found: hosts, devices and links.

Each process is a device. Hosts are told apart by their names, and follow each other as their first
processes do. Devices that measure alike are one kind, whose figures come from all their points, so
that equal hosts are equal in the cluster, and unlike ones are not.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from costmodel.errors import CalibrationError
from costmodel.hardware.cluster import Cluster
from costmodel.hardware.device import Device
from costmodel.hardware.link import Link, slowest_link
from costmodel.hardware.topology import Host, Level
from costmodel.measured import fit
from costmodel.measured.machine import Machine
from costmodel.measured.points import MatmulPoint, StreamPoint

ALIKE = 1.25
"""Devices are of one kind if no figure of one exceeds that of the other by more than this factor
[chosen: repeated measurements of one machine differ by some percent, generations by more]."""


@dataclass(frozen=True, slots=True)
class DeviceFound:
    """What one process has found about itself, all processes working at the same time."""

    machine: Machine
    matmuls: tuple[MatmulPoint, ...]
    stream: StreamPoint


@dataclass(frozen=True, slots=True)
class LinkFound:
    """A link between two processes: the time of a small message, and of a large one, each way."""

    first: int
    second: int
    """Their ranks."""

    small_s: float
    large_s: float
    large_bytes: int

    @property
    def link(self) -> Link:
        """The link; the small message takes the latency alone."""
        seconds = max(self.large_s - self.small_s, self.large_s / 2)
        return Link(self.small_s, self.large_bytes / seconds)


def pairs_to_measure(hosts: Sequence[str]) -> list[tuple[int, int]]:
    """The ranks between which links are measured: two of each host, and the first of neighbours.

    Args:
        hosts: By rank, what tells its host from others.

    Examples:
        >>> pairs_to_measure("aabbb")
        [(0, 1), (2, 3), (0, 2)]
    """
    ranks = _ranks_of(hosts)
    inside = [(of[0], of[1]) for of in ranks if len(of) > 1]
    firsts = [of[0] for of in ranks]
    return inside + list(pairwise(firsts))


def cluster_of(
    name: str, source: str, devices: Sequence[DeviceFound], links: Sequence[LinkFound]
) -> Cluster:
    """The cluster of what all processes have found.

    Args:
        name: Name of the cluster.
        source: Where the figures are from.
        devices: By rank, what each process has found about itself.
        links: What was found between `pairs_to_measure`.

    Raises:
        CalibrationError: The processes of a host do not follow each other, so that devices would
            not be numbered like them.
        FitError: The points of a device do not tell its figures.
    """
    hosts = _ranks_of([device.machine.host for device in devices])
    if [rank for of in hosts for rank in of] != [*range(len(devices))]:
        raise CalibrationError(
            "devices of a cluster are numbered host by host, as processes must be; got processes "
            f"{hosts} on the hosts: tell the launcher to place them by host"
        )
    found = {(each.first, each.second): each.link for each in links}
    kinds = _kinds([[devices[rank] for rank in of] for of in hosts])
    between = [found[a[0], b[0]] for a, b in pairwise(hosts)]
    network = slowest_link(between) if between else None
    inside = [found[of[0], of[1]] if len(of) > 1 else None for of in hosts]
    made = []
    for of, device, link in zip(hosts, kinds, inside, strict=True):
        alike = [
            other
            for other, kind in zip(inside, kinds, strict=True)
            if other is not None and kind == device
        ]
        alone = network or Link(1e-6, device.memory_bandwidth_bytes_per_s)  # there is no other
        made.append(Host(device, len(of), slowest_link(alike) if link is not None else alone))
    levels = () if network is None else (Level("network", len(hosts), network),)
    return Cluster(name, tuple(made), levels, source)


def _ranks_of(hosts: Sequence[str]) -> list[list[int]]:
    """The ranks of each host, in the order of their first ones."""
    ranks: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        ranks.setdefault(host, []).append(rank)
    return list(ranks.values())


def _kinds(hosts: Sequence[Sequence[DeviceFound]]) -> list[Device]:
    """The device of each host; hosts whose devices measure alike have the same."""
    each = [_device(of, len(of)) for of in hosts]
    groups: list[list[int]] = []
    for index, device in enumerate(each):
        fitting = (group for group in groups if _are_alike(each[group[0]], device))
        group = next(fitting, None)
        if group is None:
            groups.append([index])
        else:
            group.append(index)
    kinds = list(each)
    for group in groups:
        together = _device([device for index in group for device in hosts[index]], 1)
        for index in group:
            kinds[index] = replace(
                together, name=each[group[0]].name, memory_bytes=each[group[0]].memory_bytes
            )
    return kinds


def _device(of: Sequence[DeviceFound], n_here: int) -> Device:
    """A device with the median figures of some."""
    machine = of[0].machine
    points: dict[tuple[int, int, int, str], list[float]] = {}
    for device in of:
        for point in device.matmuls:
            points.setdefault((point.m, point.n, point.k, point.dtype), []).append(point.median_s)
    launch_s, compute = fit.fit_compute(
        MatmulPoint(*shape, (statistics.median(seconds),)) for shape, seconds in points.items()
    )
    return Device(
        name=f"1/{n_here} of {machine.n_cores} cores of {machine.cpu}",
        flops_per_s=tuple((each.dtype, each.peak_flops_per_s) for each in compute),
        memory_bytes=machine.memory_bytes // n_here,
        memory_bandwidth_bytes_per_s=statistics.median(
            device.stream.n_bytes / device.stream.median_s for device in of
        ),
        launch_s=launch_s,
        efficiency=tuple((each.dtype, each.efficiency) for each in compute),
    )


def _are_alike(a: Device, b: Device) -> bool:
    """Whether two devices are of one kind, as far as their figures tell."""
    return _figures(a).keys() == _figures(b).keys() and all(
        max(x, y) <= ALIKE * min(x, y)
        for x, y in zip(_figures(a).values(), _figures(b).values(), strict=True)
    )


def _figures(device: Device) -> Mapping[str, float]:
    """What tells kinds apart. Not the launch, which depends on what else a machine does."""
    return {
        **dict(device.flops_per_s),
        "memory": float(device.memory_bytes),
        "bandwidth": device.memory_bandwidth_bytes_per_s,
    }
