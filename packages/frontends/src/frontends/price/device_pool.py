"""`DevicePool`: the devices that a plan may use, and the submeshes that they offer to its stages.

On equal hosts, submeshes are pairs (hosts, devices of each), and the stages of a plan take every
device, as in Alpa. On unlike hosts, a submesh also says of which kind its hosts are
(`stagecut.SubmeshOfKind`), stages may leave devices out, and a plain pair stands for all devices
together: a stage on them is as fast as the slowest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from functools import cached_property
from itertools import accumulate, pairwise

import autoshard
import stagecut
from costmodel import Cluster, Device, Link, slowest_link
from shardspec import Mesh
from stagecut import Places, Submesh, SubmeshOfKind

from frontends.errors import PlanError

_MOST_STATES = 2**15
"""The most states of unlike hosts over which stages are sliced [chosen: 26 layers on two kinds of
16 hosts of eight, 16,641 states, take 2.4 s, and on 32 hosts of each, 66,049, take 45 s]."""


class DevicePool:
    """Some devices of a cluster.

    Args:
        cluster: The cluster.
        memory_bytes: Memory limit of each device; by default, what each has.
        device_ids: The devices; by default all.
        taken_bytes: What is taken of the limit of each device by something else.

    Raises:
        PlacementError: The cluster does not have one of the devices.
    """

    def __init__(
        self,
        cluster: Cluster,
        memory_bytes: int | None = None,
        device_ids: Iterable[int] | None = None,
        *,
        taken_bytes: int = 0,
    ) -> None:
        self.cluster, self.memory_bytes = cluster, memory_bytes
        self._taken_bytes, self._share = taken_bytes, 1.0
        if device_ids is None:
            self.device_ids, self.hosts = tuple(range(cluster.n_devices)), cluster.hosts
        else:
            self.device_ids = tuple(sorted(device_ids))
            counts = Counter(map(cluster.host, self.device_ids))
            self.hosts = tuple(cluster.hosts[host].resized(n) for host, n in counts.items())
        self.is_equal = len(set(self.hosts)) == 1
        """Whether all hosts are alike, as far as they belong to the pool."""

        self._slowest: dict[Submesh, Device] = {}
        per_host = math.gcd(*(host.n_devices for host in self.hosts))
        self.whole: Submesh = (len(self.device_ids) // per_host, per_host)
        """All devices: hosts, and devices of each; on unlike hosts, equal parts of hosts."""

    def __repr__(self) -> str:
        return f"<DevicePool: {self.n_devices} devices of {len(self.hosts)} hosts>"

    def sharing(self, share: float) -> DevicePool:
        """The same devices, with this share of the memory limit."""
        other = copy(self)
        other._share = share
        return other

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return len(self.device_ids)

    @property
    def n_hosts(self) -> int:
        """Number of hosts that have a device of the pool."""
        return len(self.hosts)

    @cached_property
    def places(self) -> Places:
        """The submeshes that a stage may take, and which fit together.

        Raises:
            InfeasibleError: There are too many unlike hosts to slice stages over them.
        """
        if self.is_equal:
            return Places.uniform(*self.whole)
        n_states = math.prod(n * host.n_devices + 1 for host, n in Counter(self.hosts).items())
        if n_states > _MOST_STATES:
            raise autoshard.InfeasibleError(
                f"stages are sliced over unlike hosts in at most {_MOST_STATES:,} states; "
                f"{len(set(self.hosts))} kinds of {self.n_hosts} hosts have {n_states:,}: plan for "
                "fewer hosts, or for hosts of one kind"
            )
        return Places.of_hosts(self.hosts, use_all=False)

    def devices_of(self, submesh: Submesh) -> tuple[int, ...]:
        """The first devices that a submesh may have, host by host."""
        if submesh == self.whole:
            return self.device_ids
        n_hosts, per_host = submesh
        rows = self.rows
        if isinstance(submesh, SubmeshOfKind):
            rows = [row for name, n in submesh.hosts for row in self._rows_of[name][:n]]
        return tuple(device for row in rows[:n_hosts] for device in row[:per_host])

    @cached_property
    def rows(self) -> list[tuple[int, ...]]:
        """The devices of each host."""
        ends = accumulate((host.n_devices for host in self.hosts), initial=0)
        return [self.device_ids[first:end] for first, end in pairwise(ends)]

    @cached_property
    def _rows_of(self) -> dict[str, list[tuple[int, ...]]]:
        """The devices of each host, by kind."""
        names = [kind.name for kind, n in self.places.hosts for _ in range(n)]
        rows: dict[str, list[tuple[int, ...]]] = {name: [] for name in names}
        for name, row in zip(names, self.rows, strict=True):
            rows[name].append(row)
        return rows

    def device(self, submesh: Submesh) -> Device:
        """The device as which those of a submesh count, see `costmodel.slowest_device`."""
        if submesh not in self._slowest:
            ids = self.devices_of(submesh)
            self._slowest[submesh] = self.cluster.slowest(Mesh((len(ids),), ("x",), ids))
        return self._slowest[submesh]

    def limit(self, submesh: Submesh) -> int:
        """The memory limit of one device of a submesh, in bytes."""
        return self._left(self.device(submesh))

    def limit_of(self, device_ids: Iterable[int]) -> int:
        """The memory limit of the one of some devices that has least, in bytes."""
        if len(self.kinds) == 1 or self.memory_bytes is not None:
            return self.least_limit
        hosts = {self.cluster.host(device) for device in device_ids}
        return min(self._left(self.cluster.hosts[host].device) for host in hosts)

    def _left(self, device: Device) -> int:
        n_bytes = device.memory_bytes if self.memory_bytes is None else self.memory_bytes
        return int(max(0, n_bytes - self._taken_bytes) * self._share)

    @property
    def least_limit(self) -> int:
        """The memory limit of the device with the least memory, in bytes."""
        return min(map(self._left, self.kinds))

    @property
    def all_bytes(self) -> int:
        """The memory limits of all devices together, in bytes."""
        return sum(self._left(device) * n for device, n in self.kinds.items())

    @cached_property
    def kinds(self) -> dict[Device, int]:
        """The number of devices of each kind."""
        kinds: Counter[Device] = Counter()
        for host in self.hosts:
            kinds[host.device] += host.n_devices
        return kinds

    @property
    def network(self) -> Link:
        """The slowest link that a transfer between stages may have to take."""
        if self.n_hosts > 1:
            return self.cluster.inter_host
        return self.inside

    @property
    def inside(self) -> Link:
        """The slowest link between devices of a host."""
        return slowest_link(dict.fromkeys(host.link for host in self.hosts))

    def submesh_of(self, device_ids: Sequence[int]) -> Submesh:
        """The submesh that has some devices of the pool.

        Raises:
            PlanError: It offers none that has them.
        """
        n = len(device_ids)
        if self.is_equal:
            hosts, rest = divmod(n, self.whole[1])
            return (1, rest) if rest else (hosts, self.whole[1])
        if n == self.n_devices:
            return self.whole
        place_of = {device: at for at, row in enumerate(self.rows) for device in row}
        rows = Counter(place_of[device] for device in device_ids)
        names = [kind.name for kind, count in self.places.hosts for _ in range(count)]
        kinds = {names[row] for row in rows}
        submesh = SubmeshOfKind([(kinds.pop(), len(rows))], n // len(rows))
        if kinds or submesh not in self.places.shapes:
            raise PlanError(
                "a stage on unlike hosts takes hosts of one kind, parts of one host, or all "
                f"devices; got devices {tuple(device_ids)} of cluster {self.cluster.name!r}"
            )
        return submesh

    def fewer(self, submesh: Submesh, n_hosts: int, per_host: int) -> Submesh | None:
        """A submesh of the same kind with fewer hosts or devices; None if it is offered nowhere."""
        if not isinstance(submesh, SubmeshOfKind):
            return (n_hosts, per_host) if self.is_equal else None
        smaller = SubmeshOfKind([(submesh.hosts[0][0], n_hosts)], per_host)
        return smaller if smaller in self.places.shapes else None

    def assign(self, submeshes: Sequence[Submesh]) -> list[tuple[int, ...]]:
        """The devices of stages on some submeshes, such that neighbours are near; see stagecut.

        Raises:
            SubmeshError: They do not fit together.
        """
        if not self.is_equal and [*submeshes] == [self.whole]:
            return [self.device_ids]
        grids = stagecut.assign_devices(submeshes, self.places)
        return [tuple(self.device_ids[at] for row in grid for at in row) for grid in grids]
