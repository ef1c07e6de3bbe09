"""What a cluster is made of: hosts full of devices, and levels of network above them."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.device import Device
from costmodel.errors import QuantityError
from costmodel.link import Link


@dataclass(frozen=True, slots=True)
class Host:
    """A machine with equal devices.

    Raises:
        QuantityError: It has no device, or a part of one.
    """

    device: Device
    n_devices: int
    link: Link
    """Between two of its devices; each device has its own."""

    def __post_init__(self) -> None:
        if not (isinstance(self.n_devices, int) and self.n_devices >= 1):
            raise QuantityError(
                f"a host has a whole number n_devices >= 1; got n_devices={self.n_devices}"
            )


@dataclass(frozen=True, slots=True)
class Level:
    """A level of the network: switches that each join `n_hosts` consecutive hosts without blocking.

    What a level joins are the hosts (first level) or the units of the level below. Worked case, 16
    hosts with 8 cards each at 50 GB/s, in leaves of 4 hosts with 2 uplinks each at 100 GB/s:

        Level("leaf", 4, Link(5e-6, 50e9), rails=8), Level("spine", 16, Link(9e-6, 100e9), rails=2)

    Raises:
        QuantityError: It joins no host, or by no rail, or by a part of one.
    """

    name: str
    n_hosts: int
    """Hosts under one unit of this level, those of the units below included."""
    link: Link
    """One rail between what the level joins and the level: a network card, or an uplink."""
    rails: int = 1
    """How many such connections each of what it joins has."""

    def __post_init__(self) -> None:
        if not all(isinstance(count, int) and count >= 1 for count in (self.n_hosts, self.rails)):
            raise QuantityError(
                "a level has whole numbers n_hosts >= 1 and rails >= 1; "
                f"got n_hosts={self.n_hosts} and rails={self.rails} in level {self.name!r}"
            )
