"""A cluster: equal hosts with equal devices, and what a mesh laid over it sees."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from dataclasses import dataclass
from importlib import resources

from shardspec import Axis, Mesh

from costmodel.device import Device
from costmodel.errors import ClusterFormatError, PlacementError, QuantityError, UnknownNameError
from costmodel.link import GroupLinks, Link, MeshLinks


@dataclass(frozen=True, slots=True)
class Cluster:
    """Hosts in a non-blocking network, each with the same devices.

    Device `d` is on host `d // devices_per_host`.

    Raises:
        QuantityError: There is no host, no device on a host, or a part of one.
    """

    name: str
    n_hosts: int
    devices_per_host: int
    device: Device
    intra_host: Link
    """Between two devices of a host; each device has its own."""
    inter_host: Link
    """One host's network card, which its devices share."""
    source: str = ""
    """Where the figures are from, for people."""

    def __post_init__(self) -> None:
        counts = (self.n_hosts, self.devices_per_host)
        if not all(isinstance(count, int) and count >= 1 for count in counts):
            raise QuantityError(
                "a cluster needs whole numbers n_hosts >= 1 and devices_per_host >= 1; "
                f"got n_hosts={self.n_hosts} and devices_per_host={self.devices_per_host}"
            )

    @property
    def n_devices(self) -> int:
        """Devices of all hosts."""
        return self.n_hosts * self.devices_per_host

    def host(self, device_id: int) -> int:
        """Index of the host that a device is on.

        Raises:
            PlacementError: The cluster has no such device.
        """
        if not 0 <= device_id < self.n_devices:
            raise PlacementError(
                f"a device id of cluster {self.name!r} lies in 0..{self.n_devices - 1} "
                f"({self.n_hosts} hosts x {self.devices_per_host} devices); got {device_id}"
            )
        return device_id // self.devices_per_host

    def links(self, mesh: Mesh) -> MeshLinks:
        """Effective link of each axis, and of each set of axes, of a mesh laid over the cluster.

        Groups that stay on their hosts communicate at `intra_host`. If a group spans hosts, its
        ring is ordered by host, so that it leaves each host once, at `inter_host`; the groups that
        leave one host at the same time share its card, each getting an equal part of the bandwidth.

        Worked case, 2 hosts x 4 devices as a 2x4 mesh: along axis 1 no group leaves its host; along
        axis 0 four groups, (0, 4), (1, 5), (2, 6) and (3, 7), leave each host and get a quarter of
        the card each; over both axes one group of eight gets all of it.

        Not modelled: the network is taken to be slower than the links inside a host, and an
        all-to-all among several devices on each of several hosts loads the card more than a ring.

        Raises:
            PlacementError: The mesh has a device that the cluster has not.
        """
        hosts = {device_id: self.host(device_id) for device_id in mesh.device_ids}
        return MeshLinks(
            mesh.ndim,
            lambda axes: GroupLinks(self._link(mesh, tuple(sorted(axes, key=str)), hosts)),
        )

    def _link(self, mesh: Mesh, axes: tuple[Axis, ...], hosts: dict[int, int]) -> Link:
        leaving: Counter[int] = Counter()
        for group in mesh.groups(axes):
            spanned = {hosts[device_id] for device_id in group}
            if len(spanned) > 1:
                leaving.update(spanned)
        if not leaving:
            return self.intra_host
        return Link(
            self.inter_host.latency_s,
            self.inter_host.bandwidth_bytes_per_s / max(leaving.values()),
        )

    def to_json(self) -> str:
        """The cluster as a JSON text, which `from_json` reads back to an equal one."""
        fields = dataclasses.asdict(self)
        fields["device"]["flops_per_s"] = dict(self.device.flops_per_s)
        return json.dumps(fields, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Cluster:
        """Read a cluster from the JSON text that `to_json` writes.

        Raises:
            ClusterFormatError: The text is no JSON object, or a field is missing or unknown.
            QuantityError: A figure is out of its range.
        """
        try:
            fields = json.loads(text)
            device = fields.pop("device")
            return cls(
                device=Device(flops_per_s=tuple(device.pop("flops_per_s").items()), **device),
                intra_host=Link(**fields.pop("intra_host")),
                inter_host=Link(**fields.pop("inter_host")),
                **fields,
            )
        except QuantityError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ClusterFormatError(
                "a cluster is a JSON object with the fields that Cluster.to_json writes; "
                f"this one does not read: {type(error).__name__}: {error}"
            ) from error

    @classmethod
    def preset(cls, name: str) -> Cluster:
        """A cluster that comes with the package, by one of the names in `presets()`.

        Raises:
            UnknownNameError: No preset has this name.
        """
        if name not in presets():
            raise UnknownNameError(
                f"no preset is called {name!r}; known: {', '.join(presets())}; "
                "describe another machine as Cluster(...) or in JSON for Cluster.from_json",
                name,
            )
        return cls.from_json(_PRESETS.joinpath(f"{name}.json").read_text(encoding="utf-8"))


_PRESETS = resources.files("costmodel") / "presets"


def presets() -> tuple[str, ...]:
    """Names of the clusters that come with the package, sorted."""
    files = (entry.name for entry in _PRESETS.iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in files if name.endswith(".json")))
