"""`Host` and `Level`: the parts of a cluster, hosts with devices and levels of network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from costmodel.base.checks import assign, count, number
from costmodel.errors import QuantityError, shown
from costmodel.hardware.device import Device
from costmodel.hardware.link import Link

MOST = 2**20
"""Most hosts of a cluster, devices of a host, or rails: guards against slips, far above any real
machine."""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine with equal devices.

    Raises:
        QuantityError: The number of devices is not a whole number from 1 to `MOST`, or `pairs` is
            not a symmetric table of their size.

    Examples:
        >>> device = Device("toy", (("float32", 1e12),), 2**30, 1e11, 1e-6)
        >>> cables = ((0, 50e9, 25e9), (50e9, 0, 25e9), (25e9, 25e9, 0))
        >>> host = Host(device, 3, Link(1e-6, 75e9), cables)
        >>> [host.between(group).bandwidth_bytes_per_s for group in ((0, 1), (0, 2), (0, 1, 2))]
        [50000000000.0, 25000000000.0, 50000000000.0]
    """

    device: Device
    n_devices: int
    link: Link
    """Link between two devices of the host; each device has its own."""
    pairs: tuple[tuple[float, ...], ...] = ()
    """Where devices are joined by cables of their own, and not by a switch: for each device and
    each other one, the bytes per second between these two, in each direction. `()` for a switch."""

    def __post_init__(self) -> None:
        assign(
            self,
            n_devices=count("n_devices of a host", self.n_devices, least=1, most=MOST),
            pairs=tuple(
                tuple(number("pairs of a host", rate) for rate in row) for row in self.pairs
            ),
        )
        n, pairs = self.n_devices, self.pairs
        if pairs and not (
            len(pairs) == n
            and all(len(row) == n for row in pairs)
            and all(pairs[i][j] == pairs[j][i] > 0 for i in range(n) for j in range(i))
        ):
            raise QuantityError(
                "pairs of a host has a row and a column for each device, and between two devices "
                f"the same bandwidth > 0 both ways; got {shown(pairs)} for {n} devices"
            )

    def between(self, group: Sequence[int]) -> Link:
        """The link that each device of a group of this host's devices has to the others.

        Rings over all cables of a group pass each device, so none can be faster than the cables of
        the device that has the least. This is a bound, which rings over few devices reach.

        Args:
            group: Numbers of devices, from 0 on, two or more.
        """
        return link_between(self.link, self.pairs, group)

    def resized(self, n_devices: int) -> Host:
        """The host with its first `n_devices` devices; with more, their cables are not known."""
        pairs = self.pairs if n_devices <= len(self.pairs) else ()
        kept = tuple(row[:n_devices] for row in pairs[:n_devices])
        return replace(self, n_devices=n_devices, pairs=kept)


@dataclass(frozen=True, slots=True)
class Level:
    """A level of the network: switches that each join `n_hosts` consecutive hosts without blocking.

    The first level joins hosts, every other level the units of the level below. Worked case: 16
    hosts with 8 cards of 50 GB/s each, in leaves of 4 hosts with 2 uplinks of 100 GB/s each:

        Level("leaf", 4, Link(5e-6, 50e9), rails=8), Level("spine", 16, Link(9e-6, 100e9), rails=2)

    Raises:
        QuantityError: The number of hosts or rails is not a whole number from 1 to `MOST`.
    """

    name: str
    n_hosts: int
    """Hosts under one unit of this level, including those of the units below."""
    link: Link
    """One rail between the level and a host or unit that it joins: a network card, or an uplink."""
    rails: int = 1
    """Number of rails of each host or unit that it joins."""

    def __post_init__(self) -> None:
        of = f"of level {self.name!r}"
        assign(
            self,
            n_hosts=count(f"n_hosts {of}", self.n_hosts, least=1, most=MOST),
            rails=count(f"rails {of}", self.rails, least=1, most=MOST),
        )


def link_between(link: Link, pairs: tuple[tuple[float, ...], ...], group: Sequence[int]) -> Link:
    """What `Host.between` says, of a host's link and pairs."""
    if not pairs:
        return link
    least = min(sum(pairs[a][b] for b in group if b != a) for a in group)
    return replace(link, bandwidth_bytes_per_s=min(least, link.bandwidth_bytes_per_s))


def equal_hosts(host: Host, n_hosts: int) -> tuple[Host, ...]:
    """`n_hosts` times the same host.

    Raises:
        QuantityError: The number is not a whole number from 1 to `MOST`.
    """
    return (host,) * count("n_hosts of a cluster", n_hosts, least=1, most=MOST)
