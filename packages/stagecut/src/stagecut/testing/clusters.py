"""Strategies for clusters and for requests of submeshes, and all ways to place such a request."""

import itertools
import math
from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

from stagecut.base.types import Submesh
from stagecut.placement.host_packing import HostKind
from stagecut.placement.offers import Places, SubmeshOfKind
from stagecut.placement.submesh import submesh_shapes


@st.composite
def cluster_shapes(
    draw: st.DrawFn, max_hosts: int = 4, max_devices_per_host: int = 12
) -> tuple[int, int]:
    """Numbers of hosts and of devices per host, also ones that are not powers of two."""
    return draw(st.integers(1, max_hosts)), draw(st.integers(1, max_devices_per_host))


@st.composite
def tilings(draw: st.DrawFn, max_devices: int = 48) -> tuple[tuple[int, int], tuple[Submesh, ...]]:
    """A cluster, and submeshes of possible shapes that together have all its devices."""
    shape = draw(cluster_shapes().filter(lambda shape: shape[0] * shape[1] <= max_devices))
    rest, submeshes = shape[0] * shape[1], []
    while rest:
        fitting = [(n, m) for n, m in submesh_shapes(*shape) if n * m <= rest]
        submeshes.append(draw(st.sampled_from(fitting)))
        rest -= submeshes[-1][0] * submeshes[-1][1]
    return shape, tuple(draw(st.permutations(submeshes)))


@st.composite
def host_kinds(draw: st.DrawFn, name: str = "", max_devices: int = 6) -> HostKind:
    """A kind of host with the default parts or with any others."""
    n_devices = draw(st.integers(1, max_devices))
    parts = draw(st.none() | st.sets(st.integers(1, n_devices)))
    return HostKind(n_devices, name, () if parts is None else tuple(sorted({*parts, n_devices})))


@st.composite
def clusters(draw: st.DrawFn, max_hosts: int = 4) -> Places:
    """Up to three kinds of hosts in any order, with and without `use_all` and `mix`."""
    kinds = [draw(host_kinds(name)) for name in draw(st.sampled_from(("a", "ab", "abc")))]
    hosts = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=max_hosts))
    return Places(
        tuple((kind, 1) for kind in hosts), use_all=draw(st.booleans()), mix=draw(st.booleans())
    )


@st.composite
def requests(draw: st.DrawFn, places: Places) -> tuple[Submesh, ...]:
    """Submeshes with at most as many devices as the cluster, also ones that cannot be placed."""
    rest = places.n_devices
    wanted: list[Submesh] = []
    while fitting := [shape for shape in places.shapes if math.prod(shape) <= rest]:
        if not places.use_all and draw(st.integers(0, 4)) == 0:
            break
        wanted.append(draw(st.sampled_from(fitting)))
        rest -= math.prod(wanted[-1])
    return tuple(draw(st.permutations(wanted)))


def all_assignments(
    submeshes: Sequence[Submesh], places: Places
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """All assignments of hosts to stages: one host with room, or consecutive hosts of a kind."""
    kind_of = [kind for kind, n in places.hosts for _ in range(n)]
    rows = {
        kind.name: [host for host, each in enumerate(kind_of) if each == kind]
        for kind in places.kinds
    }

    def assign(stage: int, free: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
        if stage == len(submeshes):
            if not (places.use_all and any(free)):
                yield ()
            return
        n, m = submesh = submeshes[stage]
        named = submesh.hosts if isinstance(submesh, SubmeshOfKind) else ((kind_of[0].name, n),)
        runs = [
            [rows[name][at : at + count] for at in range(len(rows[name]) - count + 1)]
            for name, count in named
        ]
        for chosen in itertools.product(*runs):
            hosts = tuple(sorted(itertools.chain(*chosen)))
            if all(free[host] >= m for host in hosts):
                left = tuple(each - m * (host in hosts) for host, each in enumerate(free))
                for rest in assign(stage + 1, left):
                    yield (hosts, *rest)

    yield from assign(0, tuple(kind.n_devices for kind in kind_of))


def pipeline_distance(hosts: Sequence[Sequence[int]]) -> tuple[int, int]:
    """How many hosts lie between neighbours in the pipeline, and how many neighbours share none."""
    steps = [min(abs(a - b) for a in one for b in two) for one, two in itertools.pairwise(hosts)]
    return sum(max(0, step - 1) for step in steps), sum(step > 0 for step in steps)
