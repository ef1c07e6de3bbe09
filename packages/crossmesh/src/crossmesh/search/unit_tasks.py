"""Drafts of unit tasks: pieces with the same holders and the same receivers, fused.

A cell is the intersection of a source tile and a destination tile (`cells`): all its elements are
held by the same devices and needed by the same devices. So a cell is as large as a unit task can be
(Zhuang et al., MLSys 2023, section 2.2). Cells with the same holders and receivers, also those of
several tensors, move together.
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
"""The most pieces of a plan, which take some 250 bytes each, and the most receivers of all its
tasks together. A plan beyond this is either a mistake, such as a stride of 1, or takes minutes."""

Devices = tuple[int, ...]
Levels = tuple[tuple[Reduction, int], ...]


@dataclass(frozen=True, slots=True)
class Draft:
    """A unit task before its senders, its path and its place in the order are chosen."""

    pieces: tuple[Piece, ...]
    n_bytes: int
    """Bytes of all pieces."""
    terms: tuple[Devices, ...]
    """The devices that hold each term, sorted."""
    reduction: Levels
    receivers: Devices
    """The devices that need the pieces and lack them, sorted."""


def drafts_of(
    tensors: Sequence[Tensor], host_of: Mapping[int, int], strategy: TaskStrategy, fuse_bytes: int
) -> tuple[tuple[Copy, ...], list[Draft]]:
    """The local copies, sorted by device, and the drafts of everything that has to move.

    Raises:
        PlanError: There are more than `PIECES` pieces, or receivers of all tasks together.
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
            # Pieces that are added on the way have to be of one dtype to be fused.
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
    # Several groups of receivers often get the same pieces; these are fused only once.
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
    except ValueError:  # tiles of layouts are valid arguments, so there are too many boxes
        raise _too_fine(f"more for {len(src)} by {len(dst)} shards") from None


def check_fineness(layout: Layout) -> None:
    """Refuse a layout whose shards would take too long even to list.

    Raises:
        PlanError: The layout has more than `PIECES` devices, or its shards more pieces.
    """
    cuts = [min(n, math.prod(parts)) for n, parts in zip(layout.shape, layout.cuts, strict=True)]
    if max(layout.mesh.size, math.prod(cuts)) > PIECES:
        raise _too_fine(str(layout))


def _too_fine(got: str) -> PlanError:
    """The error of a plan that would have too many pieces."""
    return PlanError(
        f"a plan has at most {PIECES} devices, pieces, and receivers of all its tasks; got "
        f"{got}; plan fewer tensors at a time, larger strides, or fewer replicas"
    )


def _groups(
    having: Iterable[int],
    receivers: Sequence[int],
    host_of: Mapping[int, int],
    strategy: TaskStrategy,
) -> list[Devices]:
    """The groups of receivers, one for each task.

    Receivers on a host that has a replica are grouped by host, because their bytes stay on it.
    """
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
    """Fuse adjacent pieces up to `fuse_bytes`; yields the pieces of each task and their bytes."""
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
