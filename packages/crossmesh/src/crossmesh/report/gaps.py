"""How far plans of random transfers are from what no plan can beat, by class of transfers.

Transfers are drawn from a generator that is the same everywhere, each from its class and number
alone. Meshes have up to four hosts with up to four devices each, and need not be hosts by devices;
tensors have three dims and from 1,000 elements on, as below a gap is one of single elements.
"""

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple, get_args

from shardspec import ChunkingRule, Layout, Mesh, Partial, Spec, Split
from shardspec.amounts import columns

from crossmesh.base.links import Links
from crossmesh.search.planner import plan
from crossmesh.transfer.plan import TransferPlan
from crossmesh.transfer.simulate import simulate

BAR = 0.05
"""A gap up to which a plan is good."""


class TransferClass(NamedTuple):
    """What the transfers of a class have."""

    overlapping: float = 0.5
    """The share of them in which meshes may have devices in common, and any hosts."""
    uneven: bool = False
    """Whether sizes of dims are prime, and cut by any rule."""
    strided: bool = False
    """Whether the source or the destination is strided, or both."""
    partial: bool = False
    """Whether the source holds partial sums."""


CLASSES = {
    "disjoint": TransferClass(overlapping=0.0),
    "overlapping": TransferClass(overlapping=1.0),
    "uneven": TransferClass(uneven=True),
    "strided": TransferClass(strided=True),
    "partial": TransferClass(partial=True),
    "all of these": TransferClass(overlapping=1.0, uneven=True, strided=True, partial=True),
}


class Pair(NamedTuple):
    """A transfer: two layouts, and the host of each device."""

    src: Layout
    dst: Layout
    hosts: dict[int, int]


def draw_pair(name: str, number: int) -> Pair:
    """A transfer of a class, by its number."""
    kind = CLASSES[name]
    draw = random.Random(f"{name} {number}")
    shape: tuple[int, ...] = (1,)
    while math.prod(shape) < _LEAST:
        shape = tuple(draw.choice(_PRIME if kind.uneven else _EVEN) for _ in range(3))
    strided = [kind.strided, kind.strided and draw.random() < 0.5]
    draw.shuffle(strided)
    (src_hosts, src_each), (dst_hosts, dst_each) = (
        (draw.randint(1, 4), draw.randint(1, 4)) for _ in range(2)
    )
    n_src, n_dst = src_hosts * src_each, dst_hosts * dst_each
    if draw.random() < kind.overlapping:
        first = draw.choice((0, draw.randrange(n_src)))
        each = max(draw.randint(1, 4), -(-max(n_src, n_dst) // 4))
        hosts = {device: device // each for device in range(max(n_src, first + n_dst))}
    else:
        first = n_src
        hosts = {device: device // src_each for device in range(n_src)}
        hosts |= {first + i: src_hosts + i // dst_each for i in range(n_dst)}

    def layout(n: int, first: int, strided: bool, partial: bool) -> Layout:
        rows = draw.choice([rows for rows in range(1, n + 1) if n % rows == 0])
        mesh = Mesh((rows, n // rows), ("x", "y"), tuple(range(first, first + n)))
        spec = _spec(draw, mesh, strided, partial)
        rule: ChunkingRule = draw.choice(get_args(ChunkingRule)) if kind.uneven else "ceil"
        return Layout(shape, mesh, spec, rule)

    src = layout(n_src, 0, strided[0], kind.partial)
    return Pair(src, layout(n_dst, first, strided[1], False), hosts)


_LEAST = 1000
_EVEN = (24, 60, 64, 7, 1)
_PRIME = (23, 61, 67, 7, 1)


def _spec(draw: random.Random, mesh: Mesh, strided: bool, partial: bool) -> Spec:
    axes = draw.sample((0, 1), 2)
    summed: list[int] = []
    if partial:
        # One axis, the longer one if the other has no length, or both.
        axes.sort(key=lambda axis: mesh.shape[axis] > 1)
        summed = [axes.pop() for _ in range(draw.choice((1, 1, 2)))]
    dims: list[list[int | Split]] = [[], [], [], []]  # the last for what replicates
    for axis in axes:
        draw.choice(dims).append(axis)
    if strided:
        dim = draw.choice([dim for dim in dims[:3] if dim] or dims[:3])
        dim.insert(0, Split(draw.choice((2, 3, 4))))
    return Spec(tuple(map(tuple, dims[:3])), tuple(Partial(axis, "sum") for axis in summed))


def planned(pair: Pair) -> TransferPlan:
    """Its plan. As tensors are small, chunks are as short as those of large ones are long."""
    links = Links(1e6, device_bytes_per_s=math.inf, latency_s=0.0)
    return plan(pair.src, pair.dst, "float32", pair.hosts, links, chunk_bytes=1)


def gaps(name: str, n_pairs: int, first: int = 0) -> list[float]:
    """The gaps of transfers of a class, from a number on, of which something passes hosts."""

    def all_gaps() -> Iterator[float]:
        for number in itertools.count(first):
            timeline = simulate(planned(draw_pair(name, number)))
            if timeline.lower_bound_s > 0:
                yield timeline.gap

    return list(itertools.islice(all_gaps(), n_pairs))


def within_bar(found: Sequence[float]) -> float:
    """The share of gaps up to `BAR`."""
    return sum(gap <= BAR * (1 + 1e-9) for gap in found) / len(found)


def gaps_text(n_pairs: int, first: int = 0) -> str:
    """A table of the gaps of so many transfers of each class, from a number on."""
    rows = [["class", "within 5 %", "median", "95th percentile", "worst"]]
    for name in CLASSES:
        found = sorted(gaps(name, n_pairs, first))
        shown = [found[n_pairs // 2], found[math.ceil(0.95 * n_pairs) - 1], found[-1]]
        rows.append(
            [
                name,
                f"{100 * within_bar(found):.2f} %",
                *(f"{100 * gap:.2f} %" for gap in shown),
            ]
        )
    return "\n".join(columns(rows, right=(1, 2, 3, 4)))
