"""What a cluster is made of: hosts full of devices, and levels of network above them."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.base.checks import assign, count
from costmodel.hardware.device import Device
from costmodel.hardware.link import Link

MOST = 2**20
"""Hosts of a cluster, devices of a host, rails: a guard against slips, far above all machines."""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine with equal devices.

    Raises:
        QuantityError: It has no device, a part of one, or more than `MOST`.
    """

    device: Device
    n_devices: int
    link: Link
    """Between two of its devices; each device has its own."""

    def __post_init__(self) -> None:
        assign(self, n_devices=count("n_devices of a host", self.n_devices, least=1, most=MOST))


@dataclass(frozen=True, slots=True)
class Level:
    """A level of the network: switches that each join `n_hosts` consecutive hosts without blocking.

    What a level joins are the hosts (first level) or the units of the level below. Worked case, 16
    hosts with 8 cards each at 50 GB/s, in leaves of 4 hosts with 2 uplinks each at 100 GB/s:

        Level("leaf", 4, Link(5e-6, 50e9), rails=8), Level("spine", 16, Link(9e-6, 100e9), rails=2)

    Raises:
        QuantityError: It joins no host, or by no rail, by a part of one, or more than `MOST`.
    """

    name: str
    n_hosts: int
    """Hosts under one unit of this level, those of the units below included."""
    link: Link
    """One rail between what the level joins and the level: a network card, or an uplink."""
    rails: int = 1
    """How many such connections each of what it joins has."""

    def __post_init__(self) -> None:
        of = f"of level {self.name!r}"
        assign(
            self,
            n_hosts=count(f"n_hosts {of}", self.n_hosts, least=1, most=MOST),
            rails=count(f"rails {of}", self.rails, least=1, most=MOST),
        )


def equal_hosts(host: Host, n_hosts: int) -> tuple[Host, ...]:
    """So many hosts.

    Raises:
        QuantityError: None, a part of one, or more than `MOST`.
    """
    return (host,) * count("n_hosts of a cluster", n_hosts, least=1, most=MOST)
