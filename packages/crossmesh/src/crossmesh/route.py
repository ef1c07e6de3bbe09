"""Routes: what a unit task occupies of the network."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from crossmesh.errors import PlanError

Port = tuple[int, str]
"""A host and a direction of its network interface, "in" or "out"."""


@dataclass(frozen=True, slots=True)
class Route:
    """The hosts that a slice passes, in order."""

    sender_host: int
    """Where the slice is."""
    receiver_hosts: tuple[int, ...]
    """The other hosts that get it, sorted; empty if the slice stays on its host."""

    @classmethod
    def from_devices(
        cls, sender: int, receivers: Iterable[int], host_of: Mapping[int, int]
    ) -> "Route":
        """The route of a slice from one device to others."""
        hosts = {host_of[device] for device in receivers} - {host_of[sender]}
        return cls(host_of[sender], tuple(sorted(hosts)))

    @property
    def ports(self) -> tuple[Port, ...]:
        """What the slice keeps busy while it moves; routes that share a port exclude each other.

        A broadcast is a ring through the receiver hosts, in which all but the last pass the slice
        on. If no host both sends and receives, sharing a port is exactly the conflict of Eq. 3
        (Zhuang et al., MLSys 2023); else it also keeps a host from sending while it passes on.
        """
        if not self.receiver_hosts:
            return ()
        incoming = ((host, "in") for host in self.receiver_hosts)
        passed_on = ((host, "out") for host in self.receiver_hosts[:-1])
        return ((self.sender_host, "out"), *incoming, *passed_on)

    def duration_s(self, n_bytes: int, rates: Mapping[int, float]) -> float:
        """Time on the network at the rate of the slowest host; 0.0 if the slice stays on its host.

        Args:
            n_bytes: Size of the slice.
            rates: Bytes per second of each host's network interface, each way.
        """
        if not self.receiver_hosts:
            return 0.0
        return n_bytes / min(rates[host] for host in (self.sender_host, *self.receiver_hosts))


def checked_rates(hosts: Iterable[int], rates: Mapping[int, float] | None) -> dict[int, float]:
    """The rates of `hosts` in bytes per second, sorted; all 1.0 if `rates` is None.

    Raises:
        PlanError: a host has no rate, or one that is not finite and positive.
    """
    hosts = sorted(hosts)
    if rates is None:
        return dict.fromkeys(hosts, 1.0)
    missing = [host for host in hosts if host not in rates]
    if missing:
        raise PlanError(f"every host needs a rate in bytes per second; rates lacks {missing}")
    for host in hosts:
        if not (math.isfinite(rates[host]) and rates[host] > 0):
            raise PlanError(
                "a rate is a positive number of bytes per second; "
                f"got {rates[host]} for host {host}"
            )
    return {host: float(rates[host]) for host in hosts}
