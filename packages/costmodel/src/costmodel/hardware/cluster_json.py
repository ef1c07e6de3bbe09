"""Reads and writes the JSON text of a cluster; consecutive equal hosts are stored with a count."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import chain, groupby

from costmodel.base.json import LEFT_OUT, decode, encode, parsed, problems, wrong_version
from costmodel.errors import ClusterFormatError
from costmodel.hardware.device import Device
from costmodel.hardware.link import Link
from costmodel.hardware.topology import Host, Level, equal_hosts

_VERSION = 1


@dataclass(frozen=True, slots=True)
class _Hosts:
    """Consecutive equal hosts."""

    count: int
    n_devices: int
    device: Device
    link: Link
    pairs: tuple[tuple[float, ...], ...] = field(default=(), metadata={LEFT_OUT: True})


@dataclass(frozen=True, slots=True)
class _Document:
    version: int
    name: str
    hosts: tuple[_Hosts, ...]
    levels: tuple[Level, ...]
    source: str = ""


def write(name: str, hosts: tuple[Host, ...], levels: tuple[Level, ...], source: str) -> str:
    """The text of a cluster with these fields."""
    equal = tuple(
        _Hosts(len(tuple(run)), host.n_devices, host.device, host.link, host.pairs)
        for host, run in groupby(hosts)
    )
    document = _Document(_VERSION, name, equal, levels, source)
    return json.dumps(encode(_Document, document), indent=2)


def read(text: str) -> tuple[str, tuple[Host, ...], tuple[Level, ...], str]:
    """The name, hosts, levels and source in a text that `write` returned.

    Raises:
        ClusterFormatError: The text is not a JSON object of this version, or fields are missing (or
            null), unknown or of another type.
        QuantityError: A figure is out of its range.
    """
    try:
        fields = parsed(text)
    except ValueError as error:
        raise ClusterFormatError(f"a cluster is a JSON object; this is no JSON: {error}") from error
    again = "write the cluster again with this Cluster.to_json"
    if reason := wrong_version("cluster", fields, _VERSION, again):
        raise ClusterFormatError(reason)
    if wrong := list(problems(_Document, fields)):
        raise ClusterFormatError(
            "a cluster is a JSON object with the fields that Cluster.to_json writes; "
            f"here {'; '.join(map(str, wrong))}",
            tuple(problem.path for problem in wrong if problem.is_missing),
        )
    document: _Document = decode(_Document, fields)
    hosts = chain.from_iterable(
        equal_hosts(Host(run.device, run.n_devices, run.link, run.pairs), run.count)
        for run in document.hosts
    )
    return document.name, tuple(hosts), document.levels, document.source
