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
    """The rates of a cluster in which each host communicates through one network interface.

    Every interface can send and receive at the same time, and any two hosts are connected equally
    well: the network of Zhuang et al., MLSys 2023, section 3.

    Raises:
        PlanError: The rate of a host is not positive and finite, the rate of a device is not
            positive, or the latency is negative or not finite.

    Examples:
        >>> Links(125e6)  # a gigabit for each host
        Links(host_bytes_per_s=125000000.0, device_bytes_per_s=inf, latency_s=0.0)
        >>> Links({0: 125e6, 1: 1.25e9}, device_bytes_per_s=5e9, latency_s=1e-5).rates([1])
        {1: 1250000000.0}
    """

    host_bytes_per_s: float | Mapping[int, float] | tuple[tuple[int, float], ...]
    """Rate of a host's network interface in each direction: one number for all hosts, or a mapping
    from host to rate (kept as sorted pairs)."""
    device_bytes_per_s: float = math.inf
    """Rate of a device inside its host in each direction. With `math.inf`, traffic inside hosts
    takes no time, as in the paper."""
    latency_s: float = 0.0
    """Latency of each message from one host to another."""

    def __post_init__(self) -> None:
        by_host = self.host_bytes_per_s
        if isinstance(by_host, int | float):
            object.__setattr__(self, "host_bytes_per_s", _rate(by_host, "every host"))
        else:
            try:
                pairs = sorted((operator.index(host), rate) for host, rate in dict(by_host).items())
            except (TypeError, ValueError):
                raise PlanError(
                    "rates are one number for all hosts, or a mapping from hosts (integers) to "
                    f"numbers; got host_bytes_per_s={by_host!r}"
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
        """The rate of each host's network interface in each direction, sorted by host.

        Raises:
            PlanError: The rates are a mapping that lacks one of `hosts`.
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
    # Python compares integers with floats exactly, so this also refuses an integer that is too
    # large for a float.
    if not (isinstance(rate, Real) and 0 < rate <= sys.float_info.max):
        raise PlanError(f"a rate is a positive number of bytes per second; got {rate} for {of}")
    return float(rate)
