"""Routes: what a unit task occupies of the network."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise

from crossmesh.errors import PlanError

Port = tuple[int, str]
"""A host and a direction of its network interface, "in" or "out"."""


@dataclass(frozen=True, slots=True)
class Route:
    """The hosts that bytes pass, in order; one if they stay on their host."""

    hosts: tuple[int, ...]

    @classmethod
    def from_path(cls, path: Iterable[int], host_of: Mapping[int, int]) -> "Route":
        """The route along devices."""
        return cls(tuple(host for host, _ in groupby(host_of[device] for device in path)))

    @property
    def ports(self) -> tuple[Port, ...]:
        """What the bytes keep busy while they move; routes that share a port exclude each other.

        All hosts but the last pass them on. If no host both sends and receives, sharing a port is
        exactly the conflict of Eq. 3 (Zhuang et al., MLSys 2023); else it also keeps a host from
        sending while it passes on.
        """
        return tuple(port for a, b in pairwise(self.hosts) for port in ((a, "out"), (b, "in")))

    def duration_s(self, n_bytes: int, rates: Mapping[int, float]) -> float:
        """Time on the network at the rate of the slowest host; 0.0 if there is one host.

        Args:
            n_bytes: Size of what moves.
            rates: Bytes per second of each host's network interface, each way.
        """
        if len(self.hosts) == 1:
            return 0.0
        return n_bytes / min(rates[host] for host in self.hosts)


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
