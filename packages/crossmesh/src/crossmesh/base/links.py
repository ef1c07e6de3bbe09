"""`Links`: how fast hosts and devices send and receive."""

import math
import operator
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real

from crossmesh.errors import PlanError


@dataclass(frozen=True, slots=True)
class Links:
    """Rates of a cluster in which hosts talk through one network interface each.

    Every interface sends and receives at the same time, and any two hosts are connected equally
    well: the network of Zhuang et al., MLSys 2023, section 3.

    Raises:
        PlanError: a host's rate is not positive and finite, that of a device is not positive, or
            the latency is negative or not finite.

    Examples:
        >>> Links({0: 125e6, 1: 1.25e9}, device_bytes_per_s=5e9, latency_s=1e-5).rates([1])
        {1: 1250000000.0}
    """

    host_bytes_per_s: float | Mapping[int, float] | tuple[tuple[int, float], ...]
    """Of a host's network interface, each way: one for all, or by host (kept as sorted pairs)."""
    device_bytes_per_s: float
    """Of a device inside its host, each way; `math.inf` leaves it out, as the paper does."""
    latency_s: float
    """Of each passage from one host to another."""

    def __post_init__(self) -> None:
        given = self.host_bytes_per_s
        if isinstance(given, int | float):
            object.__setattr__(self, "host_bytes_per_s", _rate(given, "every host"))
        else:
            try:
                pairs = sorted((operator.index(host), rate) for host, rate in dict(given).items())
            except (TypeError, ValueError):
                raise PlanError(
                    "rates are one number for all hosts, or a mapping from hosts, which are "
                    f"integers; got host_bytes_per_s={given!r}"
                ) from None
            rates = tuple((host, _rate(rate, f"host {host}")) for host, rate in pairs)
            object.__setattr__(self, "host_bytes_per_s", rates)
        if not (isinstance(self.device_bytes_per_s, Real) and self.device_bytes_per_s > 0):
            raise PlanError(
                "a device's rate is a positive number of bytes per second, or inf; "
                f"got device_bytes_per_s={self.device_bytes_per_s}"
            )
        if not (isinstance(self.latency_s, Real) and 0 <= self.latency_s < math.inf):
            raise PlanError(
                f"a latency is a number, finite and not negative; got latency_s={self.latency_s}"
            )

    def rates(self, hosts: Iterable[int]) -> dict[int, float]:
        """Bytes per second of each host's network interface, each way, sorted by host.

        Raises:
            PlanError: rates are given by host, and one of `hosts` has none.
        """
        hosts, rates = sorted(hosts), self.host_bytes_per_s
        if isinstance(rates, int | float):
            return dict.fromkeys(hosts, float(rates))
        known = dict(rates)
        missing = [host for host in hosts if host not in known]
        if missing:
            raise PlanError(
                "every host needs a rate in bytes per second; "
                f"host_bytes_per_s has {list(known)} but not {missing}"
            )
        return {host: known[host] for host in hosts}


def _rate(rate: float, of: str) -> float:
    # A float is compared with an integer exactly, so this also refuses what is no float.
    if not (isinstance(rate, Real) and 0 < rate <= sys.float_info.max):
        raise PlanError(f"a rate is a positive number of bytes per second; got {rate} for {of}")
    return float(rate)
