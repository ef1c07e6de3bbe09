"""Versions 1 and 2 of `HloSharding`: a grid of devices, tiled by the tensor's dims."""

import numpy as np

from shardspec.base.axis import index
from shardspec.layout.layout import Layout, replica_axes
from shardspec.layout.mesh import Mesh
from shardspec.layout.spec import sharding_axes
from shardspec.notation._hlo_parts import (
    MAX_DIMS,
    HloPlacement,
    HloScanner,
    integers,
    iota,
    iota_text,
    letters,
    listed,
    mesh_of,
    on_one_device,
    size_of,
    skip_metadata,
)
from shardspec.remesh import Digit, axes_at, digits

_SUBGROUPS = ("replicated", "unreduced", "manual", "maximal", "unknown")


def read_tiled(s: HloScanner) -> HloPlacement:
    """Reads the content of the braces of a sharding without a named mesh."""
    start = s.position
    kind = s.name()
    if kind == "devices":
        placement = _grid(s)
    elif kind == "maximal":
        s.expect("device")
        s.expect("=")
        placement = on_one_device(s)
    elif kind in ("replicated", "unreduced"):
        placement = HloPlacement(None, None, () if kind == "replicated" else None)
    elif kind in ("manual", "unknown"):
        s.fail(f"{kind!r} does not say where a tensor lies, so that a layout cannot hold it", start)
    else:
        s.fail(f"{s.what} is replicated, maximal or unreduced, or has devices or a mesh", start)
    while not s.peek("}"):
        at = s.position
        word = s.name()
        if word == "metadata":
            skip_metadata(s)
        elif word in ("shard_as", "shard_like"):
            s.integer()
        else:
            s.fail("only metadata, shard_as and shard_like may follow", at)
    return placement


def dump_tiled(layout: Layout, *, as_iota: bool) -> str:
    """The text of version 1; with `as_iota` that of version 2, where `<=[...]` gives the order.

    An order of devices that `<=[...]` cannot express is listed as in version 1.
    """
    mesh, spec = layout.mesh, layout.spec
    if mesh.size == 1:
        return f"{{maximal device={mesh.device_ids[0]}}}"
    unreduced = [partial.axis for partial in spec.partial]
    replicated = replica_axes(layout)
    subgroups = [
        (name, mesh.axis_size(axes))
        for name, axes in (("unreduced", unreduced), ("replicated", replicated))
        if mesh.axis_size(axes) > 1
    ]
    for name, size in subgroups:
        if size == mesh.size:
            return f"{{{name}}}"
    (group,) = mesh.groups((*sharding_axes(spec), *unreduced, *replicated))
    replicas = np.array(group, np.int64).reshape(-1, mesh.axis_size(replicated))
    ids = np.sort(replicas, axis=1).reshape(-1)  # replicas have no order; XLA sorts them, too
    tiles = ",".join(map(str, [*layout.shards, *(size for _, size in subgroups)]))
    order = iota_text(ids) if as_iota else None
    devices = ",".join(map(str, ids.tolist())) if order is None else f"<={order}"
    last = ", ".join(name for name, _ in subgroups)
    if last:
        last = " last_tile_dim_replicate" if last == "replicated" else f" last_tile_dims={{{last}}}"
    return f"{{devices=[{tiles}]{devices}{last}}}"


def _grid(s: HloScanner) -> HloPlacement:
    """Reads what follows `devices`: tiles of each dim, device order, kinds of the last dims."""
    s.expect("=")
    start = s.position
    s.expect("[")
    tiles = integers(s, MAX_DIMS)
    s.expect("]")
    size = size_of(s, tiles, start)
    ids = None
    order: list[Digit] | None
    if s.accept("<="):
        order = iota(s, size)
    else:
        ids = listed(s, size)
        order = digits(np.argsort(np.argsort(ids)))
    kinds: list[str] = []
    if s.accept("last_tile_dim_replicate"):
        kinds = ["replicated"]
    elif s.accept("last_tile_dims"):
        kinds = _subgroups(s, tiles)
    rank = len(tiles) - len(kinds)

    pieces = None if order is None else _pieces(tiles, order)
    if pieces is None:
        if order is not None and ids is None:
            ids = s.written_out(order, start)
        pieces = [(0, dim, length) for dim, length in enumerate(tiles) if length > 1]
        in_order = pieces
    else:
        ids = None if ids is None else np.sort(ids)
        in_order = sorted(pieces, reverse=True)
    mesh = mesh_of(s, [length for *_, length in in_order], letters(len(in_order)), ids, start)
    axes = [
        tuple(in_order.index(piece) for piece in pieces if piece[1] == dim)
        for dim in range(len(tiles))
    ]
    unreduced = [
        axis
        for kind, of_dim in zip(kinds, axes[rank:], strict=True)
        if kind == "unreduced"
        for axis in of_dim
    ]
    return HloPlacement(mesh, tuple(axes[:rank]), tuple(unreduced))


def _subgroups(s: HloScanner, tiles: list[int]) -> list[str]:
    """Reads the kinds of the last dims of `tiles`.

    Those of dims longer than 1 have to be `replicated` or `unreduced`.
    """
    s.expect("=")
    start = s.position
    s.expect("{")
    kinds: list[str] = []
    while not s.peek("}"):
        if kinds:
            s.expect(",")
        kinds.append(s.name())
    s.expect("}")
    if len(kinds) > len(tiles):
        s.fail(f"a subgroup is one of the {len(tiles)} dims; there are {len(kinds)}", start)
    for kind, length in zip(reversed(kinds), reversed(tiles), strict=False):
        if kind not in _SUBGROUPS:
            s.fail(f"a subgroup is one of {_SUBGROUPS}; there is {kind!r}", start)
        if length > 1 and kind not in _SUBGROUPS[:2]:
            s.fail(
                f"{kind!r} devices do not say where a tensor lies, so that a layout cannot hold it",
                start,
            )
    return kinds


def _pieces(tiles: list[int], order: list[Digit]) -> list[tuple[int, int, int]] | None:
    """The digits of a place in the grid, cut where dims of the grid end, major to minor.

    Returns:
        For each piece of a digit its weight in the devices' numbers, its dim and its length. None
        if a digit begins or ends where a dim cannot be cut, as in `[3,2]<=[3,2]T(1,0)`.
    """
    grid = Mesh(tuple(tiles), tuple(map(str, range(len(tiles)))))
    pieces: list[tuple[int, int, int]] = []
    minor = 1
    for size, weight in order:
        parts = axes_at(grid, minor, size)
        if parts is None:
            return None
        for part in reversed(parts):
            pieces.append((weight, index(part), grid.length(part)))
            weight *= grid.length(part)
        minor *= size
    return pieces[::-1]
