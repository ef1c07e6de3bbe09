"""`Profile`: a measured machine as raw points and fits, which give predictions and a cluster."""

from __future__ import annotations

import json
import statistics
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from costmodel.base.checks import assign, checked, count
from costmodel.base.json import decode, encode, parsed, problems, wrong_version
from costmodel.errors import (
    FitError,
    OtherMachineWarning,
    ProfileFormatError,
    QuantityError,
    UnknownNameError,
    shown,
)
from costmodel.hardware.cluster import Cluster
from costmodel.hardware.device import Device
from costmodel.hardware.link import Link
from costmodel.measured import fit
from costmodel.measured.fits import Fits, LinkFit
from costmodel.measured.machine import Machine
from costmodel.measured.points import CollectivePoint, MatmulPoint, StreamPoint
from costmodel.time.algorithm_table import rounds
from costmodel.time.ring import Bytes

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Profile:
    """The result of a calibration, `python -m costmodel calibrate`: measured points and fits.

    Raises:
        QuantityError: `n_processes` is not a whole number >= 1.
    """

    version: int
    """Version of the format."""
    backend: str
    """The library that moved the bytes: "mpi", "torch" or "jax"."""
    date: str
    """Date of the measurement, such as 2026-11-20."""
    machine: Machine
    versions: tuple[tuple[str, str], ...]
    """Versions of Python and the libraries: (name, version)."""
    n_processes: int
    """Number of processes, or virtual devices, that worked at the same time."""
    collectives: tuple[CollectivePoint, ...]
    matmuls: tuple[MatmulPoint, ...]
    streams: tuple[StreamPoint, ...]
    fits: Fits

    def __post_init__(self) -> None:
        n_processes = count("n_processes of a profile", self.n_processes, least=1)
        assign(self, n_processes=n_processes)

    @classmethod
    def fitted(
        cls,
        *,
        backend: str,
        date: str,
        machine: Machine,
        versions: tuple[tuple[str, str], ...],
        n_processes: int,
        collectives: Iterable[CollectivePoint],
        matmuls: Iterable[MatmulPoint],
        streams: Iterable[StreamPoint],
    ) -> Profile:
        """A profile of these points and the fits to them.

        Raises:
            FitError: There are too few points; see `costmodel.measured.fit`.
            MissingExtraError: scipy is not installed.
        """
        points = (tuple(collectives), tuple(matmuls), tuple(streams))
        fits = _fit(*points)
        return cls(_VERSION, backend, date, machine, versions, n_processes, *points, fits)

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """The profile in a file that has the text of `to_json`.

        Warns:
            OtherMachineWarning: The profile was measured on another machine than this one.

        Raises:
            OSError: The file cannot be read.
            CostmodelError: As `from_json`.
        """
        profile = cls.from_json(Path(path).read_bytes())
        if not profile.machine.is_like(this := Machine.this()):
            warnings.warn(
                f"{path} was measured on {profile.machine} and this is {this}; its times are that "
                "machine's; measure this one with: python -m costmodel calibrate",
                OtherMachineWarning,
                stacklevel=2,
            )
        return profile

    @classmethod
    def from_json(cls, text: str | bytes) -> Profile:
        """The profile in a text of `to_json`, of any machine; bytes are UTF-8.

        Raises:
            ProfileFormatError: The text is not a profile of this version.
            QuantityError: A figure is out of its range.
            UnknownNameError: The profile names an unknown collective or algorithm.
        """
        try:
            fields = parsed(text)
        except ValueError as error:
            raise ProfileFormatError(
                f"a profile is a JSON object; this is no JSON: {error}"
            ) from error
        again = "measure again with: python -m costmodel calibrate"
        if reason := wrong_version("profile", fields, _VERSION, again):
            raise ProfileFormatError(reason)
        if wrong := [str(problem) for problem in problems(cls, fields)]:
            first = "; ".join(wrong[:3]) + ("; ..." if len(wrong) > 3 else "")
            raise ProfileFormatError(
                "a profile has the fields that python -m costmodel calibrate writes; here " + first
            )
        profile: Profile = decode(cls, fields)
        return profile

    def to_json(self) -> str:
        """The profile as a JSON text for `from_json`, with a line for each point and fit."""
        fields = encode(Profile, self)
        return _lines_of(fields) + "\n"

    def time(self, kind: str, n: int, n_bytes: Bytes) -> Bytes:
        """Predicted time of a collective on this machine and backend.

        Groups of a size that was measured have their own curve. Others get the alpha, beta and
        algorithm that were fitted to the collective in groups of all sizes.

        Args:
            kind: A collective that was measured.
            n: Number of members of the group; 2 for "point_to_point".
            n_bytes: As in `costmodel.time.ring`; a number or an array.

        Returns:
            Seconds, an array if `n_bytes` is one; 0 in a group of one.

        Raises:
            QuantityError: `n` is not a whole number >= 1, or `n_bytes` is negative or not finite.
            UnknownNameError: The profile has no points of this collective.
        """
        sizes: Any = checked("n_bytes", n_bytes)
        n = count("n", n, least=1)
        link = next((of for of in self.fits.collectives if of.kinds == (kind,)), None)
        if link is None:
            known = ", ".join(of.kinds[0] for of in self.fits.collectives)
            raise UnknownNameError(
                f"this profile of backend {self.backend!r} has points of {known}; "
                f"got {shown(kind)}",
                str(kind),
            )
        curve = next((of for of in self.fits.curves if (of.kind, of.n) == (kind, n)), None)
        seconds: Bytes
        if n == 1:
            seconds = 0.0 * sizes
        elif curve is not None:
            seconds = curve.time(sizes)
        else:
            seconds = rounds(kind, link.algorithms[0], n).seconds(sizes, _link(link))
        return seconds

    @property
    def link(self) -> Link:
        """A link with the alpha and beta of all collectives together."""
        return _link(self.fits.link)

    @property
    def device(self) -> Device:
        """The part of the machine that one process, or virtual device, has while all work."""
        return Device(
            name=f"1/{self.n_processes} of {self.machine.n_cores} cores of {self.machine.cpu}",
            flops_per_s=tuple((of.dtype, of.peak_flops_per_s) for of in self.fits.compute),
            memory_bytes=self.machine.memory_bytes // self.n_processes,
            memory_bandwidth_bytes_per_s=self.fits.memory_bandwidth_bytes_per_s,
            launch_s=self.fits.launch_s,
            efficiency=tuple((of.dtype, of.efficiency) for of in self.fits.compute),
        )

    def cluster(self, n_hosts: int, devices_per_host: int, network: Link | None = None) -> Cluster:
        """A cluster of the measured devices.

        A profile has one link. If each host has one device, this is the network, as when each
        process was measured on its own host; otherwise it is the link inside a host.

        Args:
            n_hosts: Number of hosts.
            devices_per_host: Number of devices of each host.
            network: Link of a host's network card; required if several hosts have several devices.

        Raises:
            QuantityError: `network` is missing, or a number is not a whole number >= 1.
        """
        n_hosts = count("n_hosts", n_hosts, least=1)
        devices_per_host = count("devices_per_host", devices_per_host, least=1)
        if n_hosts > 1 and devices_per_host > 1 and network is None:
            raise QuantityError(
                "a profile has one link, and hosts with several devices have two; got "
                f"n_hosts={n_hosts}, devices_per_host={devices_per_host} and no network; "
                "give network=Link(...), or the link of a profile measured between hosts"
            )
        return Cluster.uniform(
            name=f"{self.backend} on {self.machine.cpu}",
            n_hosts=n_hosts,
            devices_per_host=devices_per_host,
            device=self.device,
            intra_host=self.link,
            inter_host=network or self.link,
            source=(
                f"[measured] {self.date} with {self.backend} and {self.n_processes} processes on "
                f"{self.machine}" + (f"; network given as {network}" if network is not None else "")
            ),
        )


def _fit(
    collectives: tuple[CollectivePoint, ...],
    matmuls: tuple[MatmulPoint, ...],
    streams: tuple[StreamPoint, ...],
) -> Fits:
    if not streams:
        raise FitError("the bandwidth of the memory needs a point of a stream; got none")
    in_order = sorted(collectives, key=lambda point: (point.kind, point.n, point.n_bytes))
    launch_s, compute = fit.fit_compute(matmuls)
    return Fits(
        link=fit.fit_link(in_order),
        collectives=tuple(
            fit.fit_link(list(points)) for _, points in groupby(in_order, lambda p: p.kind)
        ),
        curves=tuple(
            fit.fit_curve(list(points)) for _, points in groupby(in_order, lambda p: (p.kind, p.n))
        ),
        launch_s=launch_s,
        compute=compute,
        memory_bandwidth_bytes_per_s=statistics.median(
            point.n_bytes / point.median_s for point in streams
        ),
    )


def _link(of: LinkFit) -> Link:
    """A fit as a link; if its bytes take no time, the end of their confidence interval is used."""
    s_per_byte = of.s_per_byte.value or of.s_per_byte.high
    if not s_per_byte > 0:
        raise FitError(
            f"the points of {', '.join(of.kinds)} state no bandwidth; measure more sizes"
        )
    return Link(of.latency_s.value, 1 / s_per_byte)


def _lines_of(value: Any, indent: str = "") -> str:
    """JSON text; lists and objects that are nested at most once are on one line."""
    parts = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list) or not any(
        isinstance(part, dict | list) and _nested(part) for part in parts
    ):
        return json.dumps(value)
    inner = indent + "  "
    if isinstance(value, dict):
        entries = [f"{json.dumps(key)}: {_lines_of(part, inner)}" for key, part in value.items()]
    else:
        entries = [_lines_of(part, inner) for part in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{inner}" + f",\n{inner}".join(entries) + f"\n{indent}{closing}"


def _nested(value: Any) -> bool:
    parts = value.values() if isinstance(value, dict) else value
    return any(isinstance(part, dict | list) for part in parts)
