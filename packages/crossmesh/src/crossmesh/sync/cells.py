"""`streams_of`: which bytes each group of processes has to get from which other group.

The boxes that publishers hold and subscribers need cut a published tensor into cells: all elements
of a cell are held by the same processes and needed by the same processes (Zhuang et al., "On
Optimizing the Communication of Model Parallelism", MLSys 2023, section 2.2). All cells of all
tensors with the same holders and receivers are one stream of bytes. So a plan has a handful of
tensors, however many parameters a model has, and copies of an engine share one broadcast.
"""

import itertools
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardspec import Layout, Mesh, Spec

from crossmesh.base.geometry import Box, n_elements
from crossmesh.base.tensor import item_bytes
from crossmesh.errors import PlanError
from crossmesh.search.planner import plan
from crossmesh.sync.views import Encoding
from crossmesh.transfer.plan import TransferPlan

TRAILER_BYTES = 12
"""Behind the cells of a stream: the version, in 8 bytes, and the CRC-32 of all before it."""

ALIGNED_BYTES = 16
"""A cell begins at a multiple of this: the largest element, which is a complex number of 16 bytes.
Elements of any type can be read where they lie then."""


class Sent(NamedTuple):
    """A published tensor in the encoding and the element type in which it is sent."""

    source: str
    encoding: Encoding
    dtype: str


class Cell(NamedTuple):
    """A box of a tensor that is sent, and its bytes within its stream."""

    sent: Sent
    box: Box
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Stream:
    """The cells with the same holders and the same receivers, one after the other."""

    holders: tuple[int, ...]
    receivers: tuple[int, ...]
    cells: tuple[Cell, ...]

    @property
    def n_bytes(self) -> int:
        """Bytes of all cells and the trailer."""
        return self.cells[-1].stop + TRAILER_BYTES


Boxes = Mapping[int, Sequence[Box]]
"""The boxes of a tensor that each rank holds or needs."""


def streams_of(held: Mapping[Sent, Boxes], needed: Mapping[Sent, Boxes]) -> tuple[Stream, ...]:
    """The streams that bring all ranks what they need; a pure function of its arguments.

    Args:
        held: For each tensor, the boxes that each publishing rank has. Ranks that have the same
            elements have the same values.
        needed: For each tensor, the boxes that each subscribing rank needs.

    Raises:
        PlanError: Nobody has some elements that are needed.
    """
    cells: defaultdict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[Sent, Box]]]
    cells = defaultdict(list)
    for sent in sorted(needed):
        for box, holders, receivers in _cells(held.get(sent, {}), needed[sent]):
            if not holders:
                raise PlanError(
                    "what a subscriber needs is held by a publisher; got nobody for "
                    f"{sent.source}[{', '.join(f'{a}:{b}' for a, b in box)}]; publish all of it"
                )
            cells[holders, receivers].append((sent, box))
    streams = []
    for (holders, receivers), boxes in sorted(cells.items()):
        placed, end = [], 0
        for sent, box in boxes:
            start = -(-end // ALIGNED_BYTES) * ALIGNED_BYTES
            end = start + n_elements(box) * item_bytes(sent.dtype)
            placed.append(Cell(sent, box, start, end))
        streams.append(Stream(holders, receivers, tuple(placed)))
    return tuple(streams)


def plan_of(streams: Sequence[Stream], hosts: Sequence[int]) -> TransferPlan | None:
    """The plan that moves the streams; None if there are none.

    Args:
        streams: The streams.
        hosts: The host of each rank.
    """
    if not streams:
        return None
    names = [name_of(i) for i in range(len(streams))]
    src = {name: _copies(s, s.holders) for name, s in zip(names, streams, strict=True)}
    dst = {name: _copies(s, s.receivers) for name, s in zip(names, streams, strict=True)}
    return plan(src, dst, "uint8", dict(enumerate(hosts)))


def name_of(stream: int) -> str:
    """The name of a stream in the plan."""
    return f"stream {stream:06}"


def _copies(stream: Stream, ranks: tuple[int, ...]) -> Layout:
    return Layout((stream.n_bytes,), Mesh((len(ranks),), ("copy",), ranks), Spec.parse("R"))


def _cells(held: Boxes, needed: Boxes) -> list[tuple[Box, tuple[int, ...], tuple[int, ...]]]:
    """The cells that somebody needs, each with the ranks that have it and that need it."""
    having, needing = _by_box(held), _by_box(needed)
    if not needing:
        return []
    all_boxes = [*having, *needing]
    n_dims = len(all_boxes[0])
    borders = [sorted({b for box in all_boxes for b in box[dim]}) for dim in range(n_dims)]
    grid = [list(itertools.pairwise(of_dim)) for of_dim in borders]

    def within(box: Box) -> Iterator[tuple[int, ...]]:
        """The cells of the grid in a box."""
        return itertools.product(
            *(
                range(bisect_left(of_dim, start), bisect_left(of_dim, stop))
                for of_dim, (start, stop) in zip(borders, box, strict=True)
            )
        )

    receivers: defaultdict[tuple[int, ...], set[int]] = defaultdict(set)
    for box, ranks in needing.items():
        for cell in within(box):
            receivers[cell] |= ranks
    holders: defaultdict[tuple[int, ...], set[int]] = defaultdict(set)
    for box, ranks in having.items():
        for cell in within(box):
            if cell in receivers:
                holders[cell] |= ranks
    return [
        (
            tuple(grid[dim][i] for dim, i in enumerate(cell)),
            tuple(sorted(holders[cell])),
            tuple(sorted(receivers[cell])),
        )
        for cell in sorted(receivers)
    ]


def _by_box(boxes: Boxes) -> dict[Box, set[int]]:
    ranks_of: defaultdict[Box, set[int]] = defaultdict(set)
    for rank, of_rank in boxes.items():
        for box in of_rank:
            if math.prod(stop - start for start, stop in box):
                ranks_of[box].add(rank)
    return ranks_of
