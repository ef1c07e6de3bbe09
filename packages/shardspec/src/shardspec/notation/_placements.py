"""Converts between DTensor placements and layouts, without torch.

There is a placement for each mesh axis. Placements act from left to right, each on the *local*
tensor that the ones before it left: `Shard(d)` cuts dim `d` of it by `torch.chunk`;
`_StridedShard(d, k)` first cuts the dim into `k` pieces and then each piece, taking a part of every
piece.

So with even sizes, placements are read digit by digit. The part of a dim that is still local is a
list of digits, major to minor, the last one as large as needed. An axis skips digits worth `k`
pieces and takes the next digits, worth its length:

    (_StridedShard(0, 2), Shard(0)) on 4×2      local     spec of dim 0
    axis 0 skips 2 and takes 4                  2, rest   [2] 0
    axis 1 takes 2                              rest      1 0

With uneven sizes, `torch.chunk` of pieces that lie apart need not cut along digits. Such placements
are compared with the layout shard by shard; if torch cuts differently, there is no layout.
"""

import math
from collections.abc import Mapping, Sequence

from shardspec.base.axis import Entry, Split, SubAxis, index, merged
from shardspec.base.chunking import Run, joined
from shardspec.base.partial import Partial, Reduction
from shardspec.errors import NotationError
from shardspec.layout.layout import Layout
from shardspec.layout.mesh import Mesh, n_parts
from shardspec.layout.spec import Spec

PlainPlacement = tuple[int, int] | Reduction | None
"""A placement without torch: a dim and into how many pieces it is cut first (1 for `Shard`), a kind
of partial results, or None for replicated."""

_MAX_PIECES = 1 << 20
"""Most pieces of an uneven dim, as they are compared one by one."""


def layout_of(
    placements: Sequence[PlainPlacement],
    mesh: Mesh,
    shape: tuple[int, ...] | None,
    orders: Mapping[int, Sequence[int]],
) -> Layout:
    """The layout of a tensor with these placements.

    Args:
        placements: One for each mesh axis, of dims >= 0.
        mesh: The devices.
        shape: Shape of the tensor; None for the smallest even one that has all the dims.
        orders: For some dims, the axes that shard them, major to minor, if not from left to right.

    Raises:
        NotationError: no layout can express the placements.
    """
    sharding = _by_dim(placements)
    ndim = max(sharding, default=-1) + 1 if shape is None else len(shape)
    dims: list[tuple[Entry, ...]] = [()] * ndim
    for dim, axes in sharding.items():
        for axis, pieces in axes.items():
            dims[dim] = _after(dims[dim], axis, mesh.shape[axis], pieces)
    for dim, order in orders.items():
        if sorted(order) != list(sharding.get(dim, ())) or set(sharding[dim].values()) != {1}:
            raise NotationError(
                "an order has all mesh axes that shard its dim, none of them strided; "
                f"got {tuple(order)} for dim {dim} of {written(placements)}"
            )
        dims[dim] = tuple(order)
    partial = [Partial(i, kind) for i, kind in enumerate(placements) if isinstance(kind, str)]
    _check_kinds(partial)
    spec = Spec(tuple(map(merged, dims)), tuple(partial))
    cuts = [math.prod(n_parts(mesh, entry) for entry in entries) for entries in spec.dims]
    sizes = tuple(cuts) if shape is None else shape
    for n, pieces in zip(sizes, cuts, strict=True):
        _check_pieces(n, pieces, mesh)
    layout = Layout(sizes, mesh, spec, "nested")
    for dim, axes in sharding.items():
        if dim not in orders and set(axes.values()) != {1}:
            _check_cut(layout, dim, placements)
    return layout


def placements_of(layout: Layout) -> list[PlainPlacement]:
    """The placements of a layout, one for each mesh axis.

    Raises:
        NotationError: no placements can express the layout.
    """
    mesh = layout.mesh
    placements: list[PlainPlacement] = []
    local = list(layout.spec.dims)
    kinds = {partial.axis: partial.kind for partial in layout.spec.partial}
    _check_kinds(layout.spec.partial)
    for axis, length in enumerate(mesh.shape):
        used = [
            (dim, at)
            for dim, entries in enumerate(local)
            for at, entry in enumerate(entries)
            if not isinstance(entry, Split) and index(entry) == axis
        ]
        parts = [part for part in kinds if part != axis and index(part) == axis]
        if parts or any(n_parts(mesh, local[d][at]) != length for d, at in used):
            raise NotationError(
                f"a placement uses a whole mesh axis in one place; got {layout}, where axis "
                f"{mesh.axis_names[axis]!r} is used in parts; write the mesh with more axes "
                "(Mesh.split)"
            )
        if not used:
            placements.append(kinds.get(axis))
            continue
        dim, at = used[0]
        entries = local[dim]
        placements.append((dim, math.prod(n_parts(mesh, entry) for entry in entries[:at])))
        local[dim] = merged((*entries[:at], *entries[at + 1 :]))
    for dim in range(len(layout.shape)):
        _check_cut(layout, dim, placements)
    return placements


def written(placements: Sequence[PlainPlacement]) -> str:
    """A tuple of placements as torch prints it."""
    texts = ", ".join(map(_text, placements))
    return f"({texts},)" if len(placements) == 1 else f"({texts})"


def _text(placement: PlainPlacement) -> str:
    match placement:
        case None:
            return "Replicate()"
        case str():
            return f"Partial({placement})"
        case dim, 1:
            return f"Shard(dim={dim})"
        case dim, pieces:
            return f"_StridedShard(dim={dim}, sf={pieces})"


def _by_dim(placements: Sequence[PlainPlacement]) -> dict[int, dict[int, int]]:
    """For each sharded dim, the axes that shard it, in rising order, with their pieces."""
    by_dim: dict[int, dict[int, int]] = {}
    for axis, placement in enumerate(placements):
        if isinstance(placement, tuple):
            by_dim.setdefault(placement[0], {})[axis] = placement[1]
    return by_dim


def _check_kinds(partial: Sequence[Partial]) -> None:
    kinds = {p.kind for p in partial}
    if len(kinds) > 1 and kinds != {"sum", "avg"}:
        raise NotationError(
            "DTensor does not mix kinds of partial results, except sum and avg; "
            f"got {sorted(kinds)}; combine one of them first"
        )


def _check_pieces(n: int, pieces: int, mesh: Mesh) -> None:
    if n % pieces and pieces > max(_MAX_PIECES, mesh.size):
        raise NotationError(
            f"an uneven dim is cut into at most {_MAX_PIECES} pieces; got {pieces} of {n} elements"
        )


def _after(entries: tuple[Entry, ...], axis: int, length: int, pieces: int) -> tuple[Entry, ...]:
    """The entries of a dim after `axis` has cut what `entries` left local.

    The axis skips digits worth `pieces` and takes digits worth `length`.

    Raises:
        NotationError: the axis would begin or end inside a digit that it does not divide.
    """
    if length == 1:
        return (*entries, axis)
    after: list[Entry] = []
    skip, want = pieces, length
    for entry in (*entries, Split(pieces * length)):
        if not isinstance(entry, Split):
            after.append(entry)
            continue
        digit = entry.factor
        skipped = min(skip, digit)
        taken = min(want, digit // skipped)
        if max(skip, digit) % skipped or max(want, digit // skipped) % taken:
            raise NotationError(
                f"placements cut along digits: after {pieces} pieces a mesh axis of {length} would "
                f"cut the {digit} pieces that an earlier one left together; no layout says that"
            )
        after.append(Split(skipped))
        if taken > 1:
            after.append(SubAxis(axis, length // want, taken))
        after.append(Split(digit // skipped // taken))
        skip //= skipped
        want //= taken
    return merged(after)


def _check_cut(layout: Layout, dim: int, placements: Sequence[PlainPlacement]) -> None:
    """Raises `NotationError` unless torch cuts a dim exactly as the layout does."""
    mesh, n, rule = layout.mesh, layout.shape[dim], layout.rules[dim]
    if n % math.prod(layout.cuts[dim]) == 0 and not isinstance(rule, tuple):
        return
    _check_pieces(n, math.prod(layout.cuts[dim]), mesh)
    local: list[tuple[Run, ...]] = [((0, n),)]
    axes = _by_dim(placements).get(dim, {})
    for axis, pieces in axes.items():
        local = [part for runs in local for part in _cut(runs, mesh.shape[axis], pieces)]
    alone = Layout((n,), mesh, Spec((layout.spec.dims[dim],)), (rule,))
    devices = mesh.groups(tuple(axes))[0]
    ours = [alone.runs(device)[0] for device in devices]
    if rule == "padded" or ours != local:
        raise NotationError(
            f"a DTensor is cut by torch.chunk, placement by placement, without padding; dim {dim} "
            f"of {layout} is cut otherwise under {written(placements)}; pad it to an even size"
        )


def _cut(runs: Sequence[Run], length: int, pieces: int) -> list[tuple[Run, ...]]:
    """The part of a local tensor that each of `length` ranks takes: a part of each of `pieces`."""
    each = [_chunks(piece, length) for piece in _chunks(runs, pieces)]
    return [joined(run for chunks in each for run in chunks[rank]) for rank in range(length)]


def _chunks(runs: Sequence[Run], count: int) -> list[list[Run]]:
    """`torch.chunk` of the elements in `runs`, filled up to `count` with empty chunks."""
    size = -(-sum(stop - start for start, stop in runs) // count)
    chunks: list[list[Run]] = [[] for _ in range(count)]
    at = 0
    for start, stop in runs:
        while start < stop:
            chunk, before = divmod(at, size)
            end = min(stop, start + size - before)
            chunks[chunk].append((start, end))
            at += end - start
            start = end
    return chunks
