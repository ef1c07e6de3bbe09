"""`Cluster`: hosts with devices, joined by levels of network, and the links that a mesh uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from shardspec import Mesh

from costmodel.base.checks import assign, count
from costmodel.errors import HeterogeneousClusterError, PlacementError, QuantityError, shown
from costmodel.hardware import cluster_json
from costmodel.hardware.device import Device
from costmodel.hardware.link import Link, MeshLinks, slowest_link
from costmodel.hardware.placement import MeshPlacement
from costmodel.hardware.presets import resolve
from costmodel.hardware.slowest import slowest_device
from costmodel.hardware.topology import MOST, Host, Level, equal_hosts

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Hosts, equal or different, and the levels of network that join them.

    Device ids count through the hosts in order: hosts of 2, 4 and 2 devices have the ids 0-1, 2-5
    and 6-7.

    Raises:
        QuantityError: There is no host, or the levels do not join the hosts. Each level has to join
            more hosts than the one below (a whole multiple, unless it is the last), and the last
            level all hosts.

    Examples:
        >>> device = Device("toy", (("float32", 1e12),), 2**30, 1e11, 1e-6)
        >>> host = Host(device, 8, Link(1e-6, 64e9))
        >>> network = Level("network", 2, Link(1e-5, 25e9), rails=2)
        >>> cluster = Cluster("2x8", (host, host), (network,))
        >>> links = cluster.links(Mesh((2, 8), ("host", "device")))
        >>> links.over((0,)).bandwidth_bytes_per_s  # 8 groups share each host's 2 cards
        6250000000.0
        >>> links.over((0, 1)).bandwidth_bytes_per_s  # one group has both
        50000000000.0
    """

    name: str
    hosts: tuple[Host, ...]
    levels: tuple[Level, ...]
    """Innermost first; a single host needs none."""
    source: str = ""
    """Where the figures are from, as a text for people."""
    _kinds: tuple[Host, ...] = field(init=False, repr=False, compare=False)
    """The distinct hosts."""
    _kind_of: NDArray[np.intp] = field(init=False, repr=False, compare=False)
    """For each host, its index in `_kinds`."""
    _first: NDArray[np.intp] = field(init=False, repr=False, compare=False)
    """First device id of each host, then the number of devices."""

    def __post_init__(self) -> None:
        assign(self, hosts=tuple(self.hosts), levels=tuple(self.levels))  # lists are accepted, too
        if not self.hosts:
            raise QuantityError(f"a cluster has at least one host; got none in {self.name!r}")
        spans = [level.n_hosts for level in self.levels] or [1]
        rising = all(below < above for below, above in pairwise(spans))
        nested = all(above % below == 0 for below, above in pairwise(spans[:-1]))
        if not (rising and nested and spans[-1] == len(self.hosts)):
            raise QuantityError(
                "each level of a cluster joins more hosts than the one below, a whole number of "
                "its units except in the last level, which joins all hosts; "
                f"got {len(self.hosts)} hosts and levels={self.levels} in {self.name!r}"
            )
        kinds = {host: number for number, host in enumerate(dict.fromkeys(self.hosts))}
        sizes = [host.n_devices for host in self.hosts]
        assign(
            self,
            _kinds=tuple(kinds),
            _kind_of=np.array([kinds[host] for host in self.hosts]),
            _first=np.cumsum([0, *sizes]),
        )

    @classmethod
    def uniform(
        cls,
        name: str,
        n_hosts: int,
        devices_per_host: int,
        device: Device,
        intra_host: Link,
        inter_host: Link,
        source: str = "",
    ) -> Cluster:
        """A cluster of equal hosts in a non-blocking network.

        Args:
            name: Name of the cluster.
            n_hosts: Number of hosts.
            devices_per_host: Number of devices of each host.
            device: The kind of all devices.
            intra_host: Link between two devices of a host; each device has its own.
            inter_host: Link of a host's network card, which its devices share.
            source: Where the figures are from, as a text for people.

        Raises:
            QuantityError: A number of hosts or devices is not a whole number from 1 to
                `costmodel.hardware.topology.MOST`.
        """
        hosts = equal_hosts(Host(device, devices_per_host, intra_host), n_hosts)
        return cls(name, hosts, (Level("network", n_hosts, inter_host),), source)

    @classmethod
    def joined(cls, *clusters: Cluster, network: Link | None = None) -> Cluster:
        """The hosts of several clusters in one network.

        Args:
            clusters: One cluster or more.
            network: What joins a host to the network; by default the slowest that the clusters
                have, all rails of a host together.

        Raises:
            QuantityError: No cluster is given, or something else than a cluster.
            PlacementError: None of them has a network, and none is given.

        Examples:
            >>> both = Cluster.joined(Cluster.preset("dgx-a100"), Cluster.preset("p3.16xlarge:2"))
            >>> both.name, both.n_hosts, both.n_devices
            ('dgx-a100+p3.16xlarge:2', 3, 24)
        """
        others = [given for given in clusters if not isinstance(given, Cluster)]
        if others:
            raise QuantityError(
                f"clusters are joined, each a Cluster of its own; got {others[0]!r}: "
                "Cluster.preset makes one of a name"
            )
        if len(clusters) == 1 and network is None:
            return clusters[0]
        hosts = tuple(host for cluster in clusters for host in cluster.hosts)
        if network is None and clusters:
            known = [cluster.inter_host for cluster in clusters if cluster.levels]
            if not known:
                raise PlacementError(
                    "clusters are joined by a network, and none of "
                    f"{', '.join(repr(cluster.name) for cluster in clusters)} has one: pass "
                    "network=Link(latency_s, bandwidth_bytes_per_s), or give one a level in its "
                    "JSON"
                )
            network = slowest_link(known)
        sources = dict.fromkeys(cluster.source for cluster in clusters if cluster.source)
        return cls(
            "+".join(cluster.name for cluster in clusters),
            hosts,
            () if network is None else (Level("network", len(hosts), network),),
            "; ".join(sources),
        )

    @property
    def n_hosts(self) -> int:
        """Number of hosts."""
        return len(self.hosts)

    @property
    def n_devices(self) -> int:
        """Number of devices of all hosts together."""
        return int(self._first[-1])

    @property
    def devices_per_host(self) -> int:
        """Number of devices of each host.

        Raises:
            HeterogeneousClusterError: The hosts have different numbers of devices.
        """
        return self._only(
            "devices_per_host", "hosts[i].n_devices", [k.n_devices for k in self._kinds]
        )

    @property
    def device(self) -> Device:
        """The kind of all devices.

        Raises:
            HeterogeneousClusterError: The hosts have different devices.
        """
        return self._only("device", "device_of(device_id)", [kind.device for kind in self._kinds])

    @property
    def intra_host(self) -> Link:
        """Link between two devices of a host; each device has its own.

        Raises:
            HeterogeneousClusterError: The hosts have different links.
        """
        return self._only("intra_host", "hosts[i].link", [kind.link for kind in self._kinds])

    @property
    def inter_host(self) -> Link:
        """Link of a host to the network, all rails together, which its devices share.

        Only `links` accounts for levels above the first, and for how many rails a group can drive.

        Raises:
            PlacementError: The cluster is a single host without a network.
        """
        if not self.levels:
            raise PlacementError(
                f"cluster {self.name!r} is a single host without a network; "
                "give it a level of one host to state what its network card would be"
            )
        return self.levels[0].link.times(self.levels[0].rails)

    def host(self, device_id: int) -> int:
        """Index of the host of a device.

        Raises:
            PlacementError: The cluster does not have this device.
        """
        try:
            index = count("device_id", device_id)
        except QuantityError:
            raise self._no_device(device_id) from None
        return int(self._hosts_of(np.array([index]))[0])

    def device_of(self, device_id: int) -> Device:
        """The kind of a device.

        Raises:
            PlacementError: The cluster does not have this device.
        """
        return self.hosts[self.host(device_id)].device

    def slowest(self, mesh: Mesh) -> Device:
        """The device as which those of a mesh count, which run one program together.

        Equal devices count as what they are; of unlike ones, see `slowest_device`.

        Raises:
            PlacementError: The mesh has a device that the cluster does not have.
        """
        kinds = np.unique(self._kind_of[self._hosts_of(mesh.grid.reshape(-1))]).tolist()
        return slowest_device(self._kinds[kind].device for kind in kinds)

    def links(self, mesh: Mesh) -> MeshLinks:
        """The links that groups along each axis, and each set of axes, of a mesh use.

        The groups along the axes communicate at the same time and share the links that they cross;
        `costmodel.hardware.placement` says how.

        Worked case: 2 hosts of 4 devices, with one network card per host, as a 2x4 mesh. Along axis
        1 no group leaves its host. Along axis 0, four groups, (0, 4), (1, 5), (2, 6) and (3, 7),
        leave each host, and each gets a quarter of the card. Over both axes, a single group of
        eight gets all of the card.

        Not modelled: other traffic, networks that block within a level, and links that differ
        within a level.

        Raises:
            PlacementError: The mesh has a device that the cluster does not have.
        """
        ids = mesh.grid.reshape(-1)
        hosts = self._hosts_of(ids)
        slots = ids - self._first[hosts]
        return MeshLinks(
            mesh.ndim,
            MeshPlacement.of(mesh, hosts, slots, self._kind_of[hosts], self._kinds, self.levels),
        )

    def resized(
        self, *, n_hosts: int | None = None, devices_per_host: int | None = None
    ) -> Cluster:
        """The cluster with another number of the same hosts, or of the same devices in each host.

        Levels that would join no more than the level below are left out. The last level joins all
        hosts, even if it had fewer ports before.

        Raises:
            HeterogeneousClusterError: The hosts differ.
            QuantityError: A number is not a whole number from 1 to
                `costmodel.hardware.topology.MOST`.

        Examples:
            >>> Cluster.preset("two-hosts").resized(n_hosts=3).n_devices
            12
        """
        host = self._only("resized(...)", "Cluster(...) with other hosts", self._kinds)
        if devices_per_host is not None:
            host = host.resized(count("devices_per_host", devices_per_host, least=1, most=MOST))
        if n_hosts is None:
            return replace(self, hosts=(host,) * self.n_hosts)
        hosts = equal_hosts(host, n_hosts)
        inner = tuple(level for level in self.levels[:-1] if level.n_hosts < n_hosts)
        outer = self.levels[len(inner) : len(inner) + 1]
        levels = (*inner, *(replace(level, n_hosts=n_hosts) for level in outer))
        return replace(self, hosts=hosts, levels=levels)

    def to_json(self) -> str:
        """The cluster as a JSON text; `from_json` reads it back to an equal cluster."""
        return cluster_json.write(self.name, self.hosts, self.levels, self.source)

    @classmethod
    def from_json(cls, text: str) -> Cluster:
        """The cluster of a JSON text as `to_json` writes it.

        Raises:
            ClusterFormatError: The text is not a JSON object, or fields are missing (or null),
                unknown or of another type; the message names all of them.
            QuantityError: A figure is out of its range.
        """
        return cls(*cluster_json.read(text))

    @classmethod
    def preset(cls, name: str) -> Cluster:
        """A cluster that comes with the package, by one of the names in `presets()`.

        Args:
            name: `"p3.16xlarge"` for the preset itself, `"p3.16xlarge:8"` for 8 of its hosts.

        Raises:
            QuantityError: There are more hosts than `costmodel.hardware.topology.MOST`.
            UnknownNameError: No preset has this name, or the text after the colon is not a whole
                number >= 1.
        """
        text, n_hosts = resolve(name)
        cluster = cls.from_json(text)
        return cluster if n_hosts is None else replace(cluster.resized(n_hosts=n_hosts), name=name)

    def _hosts_of(self, device_ids: NDArray[np.int64]) -> NDArray[np.intp]:
        outside = device_ids[(device_ids < 0) | (device_ids >= self.n_devices)]
        if outside.size:
            raise self._no_device(int(outside.min()))
        return np.searchsorted(self._first, device_ids, side="right") - 1

    def _no_device(self, device_id: object) -> PlacementError:
        return PlacementError(
            f"a device id of cluster {self.name!r} lies in 0..{self.n_devices - 1} "
            f"({self.n_hosts} hosts); got {shown(device_id)}"
        )

    def _only(self, asked: str, instead: str, values: Sequence[T]) -> T:
        """The value that all hosts have in common; an error if they differ."""
        distinct = tuple(dict.fromkeys(values))
        if len(distinct) > 1:
            raise HeterogeneousClusterError(
                f"{asked} needs equal hosts; cluster {self.name!r} has {len(distinct)} kinds: "
                f"{', '.join(map(_named, distinct))}; use {instead}"
            )
        return distinct[0]


def _named(value: object) -> str:
    """The name of a device, quoted; the repr of anything else."""
    return repr(value.name) if isinstance(value, Device) else repr(value)
