"""Drafts of unit tasks: pieces with the same holders and the same receivers, fused.

A cell is the intersection of a source tile and a destination tile (`cells`): all its elements are
held by the same devices and needed by the same devices. So a cell is as large as a unit task can be
(Zhuang et al., MLSys 2023, section 2.2). Cells with the same holders and receivers, also those of
several tensors, move together.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, product
from typing import NamedTuple

from shardspec import Layout, Reduction

from crossmesh.base._native import core
from crossmesh.base.geometry import Box, Tile, holders, n_elements, reduction, tiles
from crossmesh.base.task import Copy, Piece, TaskStrategy
from crossmesh.base.tensor import Tensor
from crossmesh.errors import PlanError

PIECES = 2**22
"""The most pieces of a plan, which take some 250 bytes each, and the most receivers of all its
tasks together. A plan beyond this is either a mistake, such as a stride of 1, or takes minutes."""

Devices = tuple[int, ...]
Levels = tuple[tuple[Reduction, int], ...]


class Draft(NamedTuple):
    """A unit task before its senders, its path and its place in the order are chosen."""

    pieces: tuple[Piece, ...]
    n_bytes: int
    """Bytes of all pieces."""
    itemsize: int
    """The bytes of an element, if all pieces have elements of one size; else 1."""
    terms: tuple[Devices, ...]
    """The devices that hold each term, sorted."""
    reduction: Levels
    receivers: Devices
    """The devices that need the pieces and lack them, sorted."""


class _Alike:
    """Pieces with the same holders and receivers, and the bytes of each."""

    __slots__ = ("pieces", "sizes")

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.sizes: list[int] = []


_Key = tuple[tuple[Devices, ...], Devices, Levels, str]
"""Holders of each term, receivers, reduction; and the dtype of pieces that are added on the way,
which have to be of one dtype to be fused."""


def drafts_of(
    tensors: Sequence[Tensor],
    host_of: Mapping[int, int],
    strategy: TaskStrategy,
    fuse_bytes: int,
) -> tuple[tuple[Copy, ...], list[Draft]]:
    """The local copies, sorted by device, and the drafts of everything that has to move.

    Raises:
        PlanError: There are more than `PIECES` pieces, or receivers of all tasks together.
    """
    alike = _pieces_of(tensors)
    n_receivers = sum(len(needing) for _, needing, _, _ in alike)
    if n_receivers > PIECES:
        raise _too_fine(f"{n_receivers} receivers of {len(alike)} tasks")
    kept: defaultdict[int, list[Piece]] = defaultdict(list)
    sent: defaultdict[_Key, list[_Alike]] = defaultdict(list)
    grouped = _Groups(host_of, strategy)
    for key, pieces in alike.items():
        terms, needing, levels, dtype = key
        having = terms[0] if len(terms) == 1 else ()
        both = set(having).intersection(needing)
        for device in both:
            kept[device] += pieces.pieces
        receivers = tuple(d for d in needing if d not in both) if both else needing
        for group in grouped.of(having, receivers):
            sent[key if group is needing else (terms, group, levels, dtype)].append(pieces)
    # Several groups of receivers often get the same pieces; these are fused only once.
    runs: dict[tuple[int, ...], list[tuple[tuple[Piece, ...], int, int]]] = {}
    item_bytes = [tensor.item_bytes for tensor in tensors]
    drafts: list[Draft] = []
    for (terms, group, levels, _), lists in sent.items():
        alike_to = tuple(map(id, lists))
        if alike_to not in runs:
            runs[alike_to] = list(_fused(lists, item_bytes, fuse_bytes))
        for fused, n_bytes, itemsize in runs[alike_to]:
            drafts.append(Draft(fused, n_bytes, itemsize, terms, levels, group))
    return tuple(Copy(device, tuple(pieces)) for device, pieces in sorted(kept.items())), drafts


def _pieces_of(tensors: Sequence[Tensor]) -> dict[_Key, _Alike]:
    """All pieces of tensors, by their holders and receivers.

    Tensors of the same layouts have the same cells, which are computed once.
    """
    alike: defaultdict[_Key, _Alike] = defaultdict(_Alike)
    layouts = dict.fromkeys(layout for t in tensors for layout in (t.src, t.dst))
    held = {(layout.mesh, layout.spec): layout for layout in layouts}
    holders_of = {key: holders(layout) for key, layout in held.items()}
    tiles_of = {layout: tiles(layout, holders_of[layout.mesh, layout.spec]) for layout in layouts}
    cells_of: dict[tuple[Layout, Layout, str], list[tuple[_Alike, list[Box], list[int]]]] = {}
    n_pieces = 0
    for i, tensor in enumerate(tensors):
        kind = tensor.src, tensor.dst, tensor.dtype
        if kind not in cells_of:
            src, dst, levels = tiles_of[tensor.src], tiles_of[tensor.dst], reduction(tensor.src)
            dtype = tensor.dtype if levels else ""
            held_by = [tile.terms for tile in src]
            needed_by = [tile.terms[0] for tile in dst]
            item_bytes = tensor.item_bytes
            cells_of[kind] = [
                (
                    alike[held_by[s], needed_by[d], levels, dtype],
                    boxes := list(product(*common)),
                    [n_elements(box) * item_bytes for box in boxes],
                )
                for s, d, common in _cells(src, dst, PIECES - n_pieces)
            ]
        for pieces, boxes, sizes in cells_of[kind]:
            pieces.pieces += [Piece(i, box) for box in boxes]
            pieces.sizes += sizes
            n_pieces += len(boxes)
        if n_pieces > PIECES:
            raise _too_fine(f"more for the first {i + 1} of {len(tensors)} tensors")
    return alike


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


class _Groups:
    """The groups of receivers, one for each task.

    Receivers on a host that has a replica are grouped by host, because their bytes stay on it.
    """

    def __init__(self, host_of: Mapping[int, int], strategy: TaskStrategy) -> None:
        self._host_of, self._strategy = host_of, strategy
        self._hosts: dict[Devices, frozenset[int]] = {}

    def of(self, having: Devices, receivers: Devices) -> list[Devices]:
        """The groups of the devices that lack pieces, given those that have them."""
        if not receivers:
            return []
        with_replica = self._hosts_of(having)
        if self._strategy not in ("send_recv", "local_allgather") and with_replica.isdisjoint(
            self._hosts_of(receivers)
        ):
            return [receivers]
        groups: defaultdict[tuple[bool, int], list[int]] = defaultdict(list)
        for device in receivers:
            host = self._host_of[device]
            if self._strategy == "send_recv":
                groups[host not in with_replica, device].append(device)
            elif self._strategy == "local_allgather" or host in with_replica:
                groups[host not in with_replica, host].append(device)
            else:
                groups[True, 0].append(device)
        return [tuple(devices) for _, devices in sorted(groups.items())]

    def _hosts_of(self, devices: Devices) -> frozenset[int]:
        if devices not in self._hosts:
            self._hosts[devices] = frozenset(map(self._host_of.__getitem__, devices))
        return self._hosts[devices]


def _fused(
    alike: Sequence[_Alike], item_bytes: Sequence[int], fuse_bytes: int
) -> Iterator[tuple[tuple[Piece, ...], int, int]]:
    """Fuse adjacent pieces up to `fuse_bytes`.

    Yields:
        The pieces of each task, their bytes, and the bytes of an element (1 if they differ).
    """
    total = sum(sum(pieces.sizes) for pieces in alike)
    if total <= fuse_bytes:
        together = tuple(chain.from_iterable(pieces.pieces for pieces in alike))
        yield together, total, _itemsize(together, item_bytes)
        return
    batch: list[Piece] = []
    total = 0
    for pieces in alike:
        for piece, n_bytes in zip(pieces.pieces, pieces.sizes, strict=True):
            if batch and total + n_bytes > fuse_bytes:
                yield tuple(batch), total, _itemsize(batch, item_bytes)
                batch, total = [], 0
            batch.append(piece)
            total += n_bytes
    yield tuple(batch), total, _itemsize(batch, item_bytes)


def _itemsize(pieces: Sequence[Piece], item_bytes: Sequence[int]) -> int:
    if len(pieces) == 1:
        return item_bytes[pieces[0].tensor]
    sizes = {item_bytes[piece.tensor] for piece in pieces}
    return sizes.pop() if len(sizes) == 1 else 1
