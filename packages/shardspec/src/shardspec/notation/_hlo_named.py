"""Version 3 of `HloSharding`: dims are sharded by the axes of a mesh with named axes."""

import re
from collections.abc import Iterable

import numpy as np

from shardspec.base.axis import Axis, SubAxis, overlap
from shardspec.errors import NotationError
from shardspec.layout.layout import Layout
from shardspec.layout.mesh import Mesh
from shardspec.notation._build import checked_axis, read_part
from shardspec.notation._hlo_parts import (
    MAX_DIMS,
    HloPlacement,
    HloScanner,
    iota,
    iota_text,
    listed,
    mesh_of,
    on_one_device,
    size_of,
    skip_metadata,
)

_LISTS = ("replicated", "unreduced", "manual")


def read_named(s: HloScanner) -> HloPlacement:
    """Reads the content of the braces of a sharding with a named mesh."""
    if s.accept("maximal_mesh"):
        s.expect("[")
        s.expect("device_id")
        s.expect("=")
        placement = on_one_device(s)
        s.expect("]")
        if s.accept(","):
            _metadata(s)
        return placement
    mesh = _mesh(s)
    s.expect(",")
    start = s.position
    if s.accept("["):
        return _dims(s, mesh, start)
    kind = s.name()
    if kind not in _LISTS:
        s.fail("after the mesh come the dims in brackets, or replicated or unreduced", start)
    if kind == "manual":
        s.fail("'manual' does not say where a tensor lies, so that a layout cannot hold it", start)
    if s.accept(","):
        _metadata(s)
    return HloPlacement(mesh, None, () if kind == "replicated" else None)


def dump_named(layout: Layout) -> str:
    """The text of version 3.

    Raises:
        NotationError: the devices of the mesh are not 0, 1, ..., in any order.
    """
    mesh, spec = layout.mesh, layout.spec
    if mesh.size == 1 and (mesh.ndim == 0 or mesh.device_ids[0] != 0):
        return f"{{maximal_mesh[device_id={mesh.device_ids[0]}]}}"
    if sorted(mesh.device_ids) != [*range(mesh.size)]:
        raise NotationError(
            "the devices of a mesh in XLA are numbered from 0 without gaps, in any order; "
            f"got {mesh}; renumber them, or use version 2"
        )
    axes = ",".join(
        f"{_quoted(name)}={length}"
        for name, length in zip(mesh.axis_names, mesh.shape, strict=True)
    )
    order = ""
    if mesh.device_ids != range(mesh.size):
        text = iota_text(np.array(mesh.device_ids)) or ",".join(map(str, mesh.device_ids))
        order = f", device_ids=({text})"
    dims = ", ".join(_text(mesh, spec.sharding_of(dim)) for dim in range(spec.ndim))
    partial = _text(mesh, [p.axis for p in spec.partial])
    unreduced = f", unreduced={partial}" if spec.partial else ""
    return f"{{mesh[{axes}]{order}, [{dims}]{unreduced}}}"


def _mesh(s: HloScanner) -> Mesh | None:
    """Reads a mesh; None for one without axes, which stands for any mesh."""
    s.expect("mesh")
    start = s.position
    s.expect("[")
    if s.accept("]"):
        return None
    names, lengths = [], []
    while True:
        names.append(_name(s))
        s.expect("=")
        lengths.append(s.integer())
        if not s.accept(","):
            break
        if len(names) == MAX_DIMS:
            s.fail(f"a mesh has at most {MAX_DIMS} axes")
    s.expect("]")
    size = size_of(s, lengths, start)
    ids = None
    before = s.position
    if s.accept(",") and s.accept("device_ids"):
        s.expect("=")
        s.expect("(")
        ids = s.written_out(iota(s, size), start) if s.peek("[") else listed(s, size)
        s.expect(")")
    else:
        s.position = before
    return mesh_of(s, lengths, names, ids, start)


def _dims(s: HloScanner, mesh: Mesh | None, start: int) -> HloPlacement:
    """Reads the dims, after their opening bracket, and the lists of axes that may follow."""
    dims: list[tuple[Axis, ...]] = []
    while not s.accept("]"):
        if dims:
            s.expect(",")
        if len(dims) == MAX_DIMS:
            s.fail(f"a tensor has at most {MAX_DIMS} dims here")
        dims.append(_axes(s, mesh))
    lists: dict[str, tuple[Axis, ...]] = {}
    while s.accept(","):
        at = s.position
        if s.peek("metadata"):
            _metadata(s)
            break
        name = s.name()
        if name not in _LISTS or name in lists:
            s.fail(f"after the dims come {_LISTS}, each once at most, and metadata", at)
        s.expect("=")
        lists[name] = _axes(s, mesh)
        if name == "manual" and lists[name]:
            s.fail(
                "manual axes do not say where a tensor lies, so that a layout cannot hold it", at
            )
    if overlap([axis for axes in (*dims, *lists.values()) for axis in axes]):
        s.fail("each axis is used at most once, in whole or in part", start)
    return HloPlacement(mesh, tuple(dims) or None, lists.get("unreduced", ()))


def _axes(s: HloScanner, mesh: Mesh | None) -> tuple[Axis, ...]:
    """Reads axes in braces."""
    s.expect("{")
    axes: list[Axis] = []
    while not s.accept("}"):
        if axes:
            s.expect(",")
        if s.peek("?"):
            s.fail("an open dim does not say where a tensor lies, as XLA may shard it further")
        axes.append(_axis(s, mesh))
    return tuple(axes)


def _axis(s: HloScanner, mesh: Mesh | None) -> Axis:
    start = s.position
    name = _name(s)
    if mesh is None or name not in mesh.axis_names:
        s.fail("the axis is one of the mesh's", start)
    part = read_part(s) if s.accept(":") else None
    return checked_axis(s, mesh, mesh.axis(name), part, start)


def _name(s: HloScanner) -> str:
    """Reads the name of an axis; older versions of XLA print it without quotes."""
    return s.quoted() if s.peek("'") or s.peek('"') else s.name()


def _metadata(s: HloScanner) -> None:
    s.expect("metadata")
    skip_metadata(s)


def _text(mesh: Mesh, axes: Iterable[Axis]) -> str:
    """Axes in braces, as `_axes` reads them."""
    texts = []
    for axis in axes:
        if isinstance(axis, SubAxis):
            texts.append(f"{_quoted(mesh.axis_names[axis.axis])}:({axis.pre}){axis.size}")
        else:
            texts.append(_quoted(mesh.axis_names[axis]))
    return f"{{{', '.join(texts)}}}"


def _quoted(name: str) -> str:
    return "'" + re.sub(r"(['\\])", r"\\\1", name) + "'"
