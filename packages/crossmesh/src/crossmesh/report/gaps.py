"""How far the plans of random transfers are above their lower bounds, by class of transfers.

Each transfer is drawn from its class and its number alone, by a generator that gives the same
numbers everywhere. Meshes have up to four hosts with up to four devices each, but their shape need
not be hosts by devices. Tensors have three dims and at least 1,000 elements: with fewer, a gap
would come from single elements.
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
"""The largest gap of a plan that counts as good."""


class TransferClass(NamedTuple):
    """The properties of the transfers in a class."""

    overlapping: float = 0.5
    """The share of transfers whose meshes may have common devices, and any hosts."""
    uneven: bool = False
    """Whether the sizes of dims are prime, and cut by any chunking rule."""
    strided: bool = False
    """Whether the source, the destination or both are strided."""
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
    """The transfer of a class with this number."""
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
        # Sum over one axis or both; over one, prefer an axis with more than one device.
        axes.sort(key=lambda axis: mesh.shape[axis] > 1)
        summed = [axes.pop() for _ in range(draw.choice((1, 1, 2)))]
    dims: list[list[int | Split]] = [[], [], [], []]  # axes in the fourth list replicate
    for axis in axes:
        draw.choice(dims).append(axis)
    if strided:
        dim = draw.choice([dim for dim in dims[:3] if dim] or dims[:3])
        dim.insert(0, Split(draw.choice((2, 3, 4))))
    return Spec(tuple(map(tuple, dims[:3])), tuple(Partial(axis, "sum") for axis in summed))


def planned(pair: Pair) -> TransferPlan:
    """The plan of a transfer.

    Its tensor is small, so chunks may have a single byte: then it is cut into as many chunks as a
    large tensor would be.
    """
    links = Links(1e6, device_bytes_per_s=math.inf, latency_s=0.0)
    return plan(pair.src, pair.dst, "float32", pair.hosts, links, chunk_bytes=1)


def gaps(name: str, n_pairs: int, first: int = 0) -> list[float]:
    """The gaps of `n_pairs` transfers of a class, from number `first` on.

    Transfers without traffic between hosts are skipped.
    """

    def all_gaps() -> Iterator[float]:
        for number in itertools.count(first):
            timeline = simulate(planned(draw_pair(name, number)))
            if timeline.lower_bound_s > 0:
                yield timeline.gap

    return list(itertools.islice(all_gaps(), n_pairs))


def within_bar(all_gaps: Sequence[float]) -> float:
    """The share of the gaps that are at most `BAR`."""
    return sum(gap <= BAR * (1 + 1e-9) for gap in all_gaps) / len(all_gaps)


def gaps_text(n_pairs: int, first: int = 0) -> str:
    """A table of the gaps of `n_pairs` transfers of each class, from number `first` on."""
    rows = [["class", "within 5 %", "median", "95th percentile", "worst"]]
    for name in CLASSES:
        of_class = sorted(gaps(name, n_pairs, first))
        shown = [of_class[n_pairs // 2], of_class[math.ceil(0.95 * n_pairs) - 1], of_class[-1]]
        rows.append(
            [
                name,
                f"{100 * within_bar(of_class):.2f} %",
                *(f"{100 * gap:.2f} %" for gap in shown),
            ]
        )
    return "\n".join(columns(rows, right=(1, 2, 3, 4)))
