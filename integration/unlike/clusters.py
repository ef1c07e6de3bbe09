"""Random clusters of unlike hosts: devices of presets, of different speeds, sizes and networks."""

from __future__ import annotations

import random
from dataclasses import replace

from costmodel import Cluster, Host, Level, Link

PRESETS = ("dgx-a100", "h100-sxm", "p3.16xlarge", "l40s", "a2-megagpu-16g")
"""Whose hosts may be in a cluster."""

RATES = (1.25e9, 12.5e9, 50e9)
"""Bytes a second of a host's network card."""


def cluster_of(seed: int) -> Cluster:
    """A cluster of two to four hosts, at least two of which differ in devices or their number."""
    rng = random.Random(seed)
    hosts: list[Host] = []
    while len(set(hosts)) < 2:
        n_hosts = rng.randint(2, 4)
        kinds = [_host(rng) for _ in range(2)]
        hosts = [rng.choice(kinds) for _ in range(n_hosts)]
    network = Link(1e-5, rng.choice(RATES))
    return Cluster(f"unlike-{seed}", tuple(hosts), (Level("network", len(hosts), network),))


def _host(rng: random.Random) -> Host:
    """A part of a host of a preset. A V100 has no bfloat16; it computes in float16's place."""
    (host, *_) = Cluster.preset(rng.choice(PRESETS)).hosts
    rates = dict(host.device.flops_per_s)
    if "bfloat16" not in rates and "float16" in rates:
        rates["bfloat16"] = rates["float16"]
    device = replace(host.device, flops_per_s=tuple(rates.items()))
    return replace(host, device=device).resized(rng.choice((1, 2, 4, 6, 8)))


def alone(cluster: Cluster, device_ids: tuple[int, ...]) -> Cluster:
    """Some devices of a cluster as a cluster of their own, in the same network."""
    counts: dict[int, int] = {}
    for device in device_ids:
        counts[cluster.host(device)] = counts.get(cluster.host(device), 0) + 1
    hosts = tuple(cluster.hosts[host].resized(n) for host, n in counts.items())
    levels = tuple(replace(level, n_hosts=len(hosts)) for level in cluster.levels)
    return replace(cluster, hosts=hosts, levels=levels)


def text_of(cluster: Cluster) -> str:
    """The hosts in words: `8 A100 + 4 V100`."""
    return " + ".join(f"{host.n_devices} {host.device.name}" for host in cluster.hosts)
