"""Drafts of unit tasks: pieces with the same holders and the same receivers, fused.

A cell is what a source tile and a destination tile have in common (`cells`): all of it is held by
the same devices and needed by the same devices. So cells are as large as unit tasks can be
(Zhuang et al., MLSys 2023, section 2.2), and cells of several tensors with the same holders and
receivers move as one.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product

from shardspec import Layout, Reduction

from crossmesh.base._native import core
from crossmesh.base.geometry import Tile, holders, n_elements, reduction, tiles
from crossmesh.base.task import Copy, Piece, TaskStrategy
from crossmesh.base.tensor import Tensor
from crossmesh.errors import PlanError

PIECES = 2**22
"""Pieces of a plan at most, of some 250 bytes each, and receivers of its tasks together: beyond are
slips, such as a stride of 1, and plans that take minutes."""

Devices = tuple[int, ...]
Levels = tuple[tuple[Reduction, int], ...]


@dataclass(frozen=True, slots=True)
class Draft:
    """A unit task before its senders, its path and its place in the order are chosen."""

    pieces: tuple[Piece, ...]
    n_bytes: int
    """Of all pieces."""
    terms: tuple[Devices, ...]
    """The devices that hold each addend, sorted."""
    reduction: Levels
    receivers: Devices
    """Devices that need the pieces and lack them, sorted."""


def drafts_of(
    tensors: Sequence[Tensor], host_of: Mapping[int, int], strategy: TaskStrategy, fuse_bytes: int
) -> tuple[tuple[Copy, ...], list[Draft]]:
    """What devices keep, sorted by device, and what has to move.

    Raises:
        PlanError: more than `PIECES` pieces, or receivers of tasks.
    """
    alike: defaultdict[tuple[tuple[Devices, ...], Devices, Levels, str], list[Piece]]
    alike = defaultdict(list)
    layouts = dict.fromkeys(layout for t in tensors for layout in (t.src, t.dst))
    held = {(layout.mesh, layout.spec): layout for layout in layouts}
    holders_of = {key: holders(layout) for key, layout in held.items()}
    tiles_of = {layout: tiles(layout, holders_of[layout.mesh, layout.spec]) for layout in layouts}
    n_pieces = 0
    for i, tensor in enumerate(tensors):
        src, dst, levels = tiles_of[tensor.src], tiles_of[tensor.dst], reduction(tensor.src)
        for s, d, common in _cells(src, dst, PIECES - n_pieces):
            # What is added while it moves is of one dtype.
            key = (src[s].terms, dst[d].terms[0], levels, tensor.dtype if levels else "")
            alike[key] += [Piece(i, box) for box in product(*common)]
            n_pieces += math.prod(map(len, common))

    n_receivers = sum(len(needing) for _, needing, _, _ in alike)
    if n_receivers > PIECES:
        raise _too_fine(f"{n_receivers} receivers of {len(alike)} tasks")
    kept: defaultdict[int, list[Piece]] = defaultdict(list)
    sent: defaultdict[tuple[tuple[Devices, ...], Devices, Levels, str], list[list[Piece]]]
    sent = defaultdict(list)
    for (terms, needing, levels, dtype), pieces in alike.items():
        having = frozenset(terms[0] if len(terms) == 1 else ())
        for device in having.intersection(needing):
            kept[device] += pieces
        receivers = [device for device in needing if device not in having]
        for group in _groups(having, receivers, host_of, strategy):
            sent[terms, group, levels, dtype].append(pieces)
    # Most often all groups of some receivers are sent the same pieces: they are fused once.
    runs: dict[tuple[int, ...], list[tuple[tuple[Piece, ...], int]]] = {}
    drafts: list[Draft] = []
    for (terms, group, levels, _), lists in sent.items():
        alike_to = tuple(map(id, lists))
        if alike_to not in runs:
            runs[alike_to] = list(_fused(chain.from_iterable(lists), tensors, fuse_bytes))
        drafts += [Draft(fused, n_bytes, terms, levels, group) for fused, n_bytes in runs[alike_to]]
    return tuple(Copy(device, tuple(pieces)) for device, pieces in sorted(kept.items())), drafts


def _cells(
    src: Sequence[Tile], dst: Sequence[Tile], most: int
) -> list[tuple[int, int, list[list[tuple[int, int]]]]]:
    try:
        return core.cells([tile.runs for tile in src], [tile.runs for tile in dst], most)
    except ValueError:  # of what can be wrong, layouts leave only this
        raise _too_fine(f"more for {len(src)} by {len(dst)} shards") from None


def check_fineness(layout: Layout) -> None:
    """Refuse a layout whose shards would take too long even to list.

    Raises:
        PlanError: more than `PIECES` devices, or pieces on them.
    """
    cuts = [min(n, math.prod(parts)) for n, parts in zip(layout.shape, layout.cuts, strict=True)]
    if max(layout.mesh.size, math.prod(cuts)) > PIECES:
        raise _too_fine(str(layout))


def _too_fine(got: str) -> PlanError:
    """The error of a plan that would have too many pieces."""
    return PlanError(
        f"a plan has at most {PIECES} devices, pieces, and receivers of its tasks together; got "
        f"{got}; plan fewer tensors at a time, with larger strides, or onto fewer replicas"
    )


def _groups(
    having: Iterable[int],
    receivers: Sequence[int],
    host_of: Mapping[int, int],
    strategy: TaskStrategy,
) -> list[Devices]:
    """Receivers that one task serves: those on a host with a replica apart, as it stays there."""
    with_replica = {host_of[device] for device in having}
    groups: defaultdict[tuple[bool, int], list[int]] = defaultdict(list)
    for device in receivers:
        host = host_of[device]
        if strategy == "send_recv":
            groups[host not in with_replica, device].append(device)
        elif strategy == "local_allgather" or host in with_replica:
            groups[host not in with_replica, host].append(device)
        else:
            groups[True, 0].append(device)
    return [tuple(devices) for _, devices in sorted(groups.items())]


def _fused(
    pieces: Iterable[Piece], tensors: Sequence[Tensor], fuse_bytes: int
) -> Iterator[tuple[tuple[Piece, ...], int]]:
    """Runs of pieces of up to `fuse_bytes` together, or of one, with their bytes."""
    batch: list[Piece] = []
    total = 0
    for piece in pieces:
        n_bytes = n_elements(piece.box) * tensors[piece.tensor].item_bytes
        if batch and total + n_bytes > fuse_bytes:
            yield tuple(batch), total
            batch, total = [], 0
        batch.append(piece)
        total += n_bytes
    yield tuple(batch), total
