"""Versions 1 and 2 of `HloSharding`: a grid of devices, tiled by the tensor's dims."""

import numpy as np

from shardspec.base.axis import index
from shardspec.layout.layout import Layout
from shardspec.layout.mesh import Mesh
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
    """What stands between the braces of a sharding without a named mesh."""
    start = s.position
    kind = s.name()
    if kind == "devices":
        found = _grid(s)
    elif kind == "maximal":
        s.expect("device")
        s.expect("=")
        found = on_one_device(s)
    elif kind in ("replicated", "unreduced"):
        found = HloPlacement(None, None, () if kind == "replicated" else None)
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
    return found


def dump_tiled(layout: Layout, *, as_iota: bool) -> str:
    """The text of version 1; of version 2 with the devices' order as `<=[...]` where it has one."""
    mesh, spec = layout.mesh, layout.spec
    if mesh.size == 1:
        return f"{{maximal device={mesh.device_ids[0]}}}"
    dims = [spec.sharding_of(dim) for dim in range(spec.ndim)]
    unreduced = [partial.axis for partial in spec.partial]
    used = [axis for axes in (*dims, unreduced) for axis in axes]
    replicated = [part for part in mesh.parts(used) if part not in used]
    subgroups = [
        (name, mesh.axis_size(axes))
        for name, axes in (("unreduced", unreduced), ("replicated", replicated))
        if mesh.axis_size(axes) > 1
    ]
    for name, size in subgroups:
        if size == mesh.size:
            return f"{{{name}}}"
    (group,) = mesh.groups((*used, *replicated))
    replicas = np.array(group, np.int64).reshape(-1, mesh.axis_size(replicated))
    ids = np.sort(replicas, axis=1).reshape(-1)  # XLA's form too: replicas have no order
    tiles = ",".join(map(str, [*layout.shards, *(size for _, size in subgroups)]))
    order = iota_text(ids) if as_iota else None
    devices = ",".join(map(str, ids.tolist())) if order is None else f"<={order}"
    last = ", ".join(name for name, _ in subgroups)
    if last:
        last = " last_tile_dim_replicate" if last == "replicated" else f" last_tile_dims={{{last}}}"
    return f"{{devices=[{tiles}]{devices}{last}}}"


def _grid(s: HloScanner) -> HloPlacement:
    """After `devices`: the tiles of each dim, the devices, and the kinds of the last dims."""
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
    """The kinds of the last of `tiles`; if these are longer than 1, `replicated` or `unreduced`."""
    s.expect("=")
    start = s.position
    s.expect("{")
    found: list[str] = []
    while not s.peek("}"):
        if found:
            s.expect(",")
        found.append(s.name())
    s.expect("}")
    if len(found) > len(tiles):
        s.fail(f"a subgroup is one of the {len(tiles)} dims; there are {len(found)}", start)
    for kind, length in zip(reversed(found), reversed(tiles), strict=False):
        if kind not in _SUBGROUPS:
            s.fail(f"a subgroup is one of {_SUBGROUPS}; there is {kind!r}", start)
        if length > 1 and kind not in _SUBGROUPS[:2]:
            s.fail(
                f"{kind!r} devices do not say where a tensor lies, so that a layout cannot hold it",
                start,
            )
    return found


def _pieces(tiles: list[int], order: list[Digit]) -> list[tuple[int, int, int]] | None:
    """The digits of a place in the grid, cut where its dims end, major to minor.

    Returns:
        For each its weight in the devices' numbers, its dim and its length; None if a digit begins
        or ends within what cannot be cut there, as in `[3,2]<=[3,2]T(1,0)`.
    """
    grid = Mesh(tuple(tiles), tuple(map(str, range(len(tiles)))))
    found: list[tuple[int, int, int]] = []
    minor = 1
    for size, weight in order:
        parts = axes_at(grid, minor, size)
        if parts is None:
            return None
        for part in reversed(parts):
            found.append((weight, index(part), grid.length(part)))
            weight *= grid.length(part)
        minor *= size
    return found[::-1]
