"""JAX: `NamedSharding` and other shardings of `jax.sharding`, and the text of `PartitionSpec`.

A `PartitionSpec` names the mesh axes that shard each dim, major to minor, as a spec does; axes in
`unreduced` hold partial sums. Dims are cut by XLA's rule, `ceil`. Three things are dropped because
they do not change what a device holds: the memory kind, axes in `reduced` (a mark for gradients),
and whether an axis is Auto or Explicit.
"""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shardspec.base.partial import Partial
from shardspec.errors import NotationError
from shardspec.layout.layout import Layout
from shardspec.layout.mesh import Mesh
from shardspec.layout.spec import Spec
from shardspec.notation import hlo
from shardspec.notation._scanner import Scanner

if TYPE_CHECKING:
    import jax

_STRING = re.compile(r"""'([^'\\\n]*(?:\\.[^'\\\n]*)*)'|"([^"\\\n]*(?:\\.[^"\\\n]*)*)\"""")
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.ASCII)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
"""Characters that Python's `repr` of a string writes with a backslash, besides code points."""


def parse(text: str, *, shape: tuple[int, ...] | None = None, mesh: Mesh | None = None) -> Layout:
    """The layout that `PartitionSpec('x', None, ('y', 'z'), unreduced={'w'})` describes on a mesh.

    Args:
        text: A PartitionSpec as JAX prints it, `P(...)`, or as programs write it.
        shape: Shape of the tensor; dims beyond those in the text are replicated. None for the
            smallest shape that is cut evenly.
        mesh: Has the axes that the text names; required.

    Raises:
        NotationError: the text is not a PartitionSpec, has an axis twice or one that the mesh does
            not have, more dims than the shape, or a dim that is UNCONSTRAINED.

    Examples:
        >>> from shardspec import Mesh
        >>> mesh = Mesh((2, 2, 2), ("x", "y", "z"))
        >>> str(parse("P('x', None, unreduced={'z'})", mesh=mesh))
        '(2, 1) as S0R+P2 on (2, 2, 2)'
    """
    if mesh is None:
        raise NotationError(
            "a PartitionSpec names axes of a mesh, which it does not have; pass mesh=...",
            text=text,
            position=0,
        )
    s = Scanner(text, "a PartitionSpec")
    if not any(map(s.accept, ("jax.sharding.PartitionSpec", "PartitionSpec", "jax.P", "P"))):
        s.fail("a PartitionSpec begins with 'P(' or 'PartitionSpec('")
    s.expect("(")
    dims: list[tuple[int, ...]] = []
    marked: dict[str, tuple[int, ...]] = {}
    used: set[int] = set()
    while not s.accept(")"):
        mark = next((word for word in ("unreduced", "reduced") if s.peek(word)), None)
        if mark is not None:
            if mark in marked:
                s.fail(f"a PartitionSpec has {mark}= once")
            s.accept(mark)
            s.expect("=")
            s.expect("{")
            marked[mark] = _axes(s, "}", mesh, used)
        elif marked:
            s.fail("a PartitionSpec has its dims before unreduced= and reduced=")
        else:
            dims.append(_dim(s, mesh, used))
        if not s.peek(")"):
            s.expect(",")
    s.end()
    partial = tuple(Partial(axis) for axis in marked.get("unreduced", ()))
    if shape is None:
        shape = tuple(mesh.axis_size(axes) for axes in dims)
    if len(shape) < len(dims):
        s.fail(f"a PartitionSpec has at most one entry for each of {len(shape)} dims", 0)
    return Layout(shape, mesh, Spec((*dims, *((),) * (len(shape) - len(dims))), partial))


def dump(layout: Layout) -> str:
    """The layout's PartitionSpec as JAX prints it, with an entry for each dim.

    Raises:
        NotationError: the layout uses parts of axes, is strided, is cut by another rule than XLA's,
            or has partial results other than sums.

    Examples:
        >>> from shardspec import Layout, Mesh, Spec
        >>> mesh = Mesh((2, 2, 2), ("x", "y", "z"))
        >>> dump(Layout((8, 8), mesh, Spec.parse("S01R+P2")))
        "P(('x', 'y'), None, unreduced={'z'})"
    """
    dims, unreduced = _names(layout)
    entries = repr(dims)[1:-1]
    if unreduced:
        space = " " if entries.endswith(",") else ", " if entries else ""
        entries += f"{space}unreduced={{{', '.join(map(repr, unreduced))}}}"
    return f"P({entries})"


def from_sharding(sharding: "jax.sharding.Sharding", shape: tuple[int, ...]) -> Layout:
    """The layout of an array of `shape` under a sharding.

    The layout of a `NamedSharding` has its mesh and axes; an `AbstractMesh` gets devices 0, 1, ...
    Any other sharding is converted by way of its `HloSharding`, to a mesh that XLA makes up. Shapes
    that do not divide evenly, which JAX has only inside `jit`, are cut as XLA does.

    Raises:
        NotationError: the sharding does not say what a device holds (a dim is UNCONSTRAINED, an
            axis is Manual, or the mesh is empty); or the name of an axis is not a string; or the
            shape has too few dims.
        MeshError: a device is in the mesh twice.
    """
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    if not isinstance(sharding, NamedSharding):
        return _from_hlo(sharding, shape)
    mesh = _mesh(sharding)
    types = zip(mesh.axis_names, mesh.shape, sharding.mesh.axis_types, strict=True)
    manual = [name for name, length, kind in types if kind == AxisType.Manual and length > 1]
    if manual or PartitionSpec.UNCONSTRAINED in sharding.spec.partitions:
        what = f"the axes {manual} are Manual" if manual else "a dim is UNCONSTRAINED"
        raise NotationError(
            f"a layout says what each device holds; got {sharding.spec}, where {what}, which "
            "leaves it to the program; take the sharding of an array outside of it"
        )
    entries = [*sharding.spec.partitions, *[None] * (len(shape) - len(sharding.spec.partitions))]
    if len(entries) > len(shape):
        raise NotationError(
            f"a PartitionSpec has at most one entry for each dim; got {sharding.spec} for "
            f"shape {tuple(shape)}"
        )
    spec = Spec.from_names(mesh, entries, {name: "sum" for name in sharding.spec.unreduced})
    return Layout(tuple(shape), mesh, spec)


def to_sharding(
    layout: Layout, devices: "Sequence[jax.Device] | None" = None
) -> "jax.sharding.NamedSharding":
    """The `NamedSharding` of a JAX array with this layout.

    Axes with partial sums are Explicit, as JAX requires; the others are Auto.

    Args:
        layout: An even layout, because JAX has no uneven arrays.
        devices: The devices with the layout's ids are taken from these; `jax.devices()` if None.

    Raises:
        NotationError: the layout is uneven, `dump` cannot express it, or an id has no device.
    """
    import jax
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    dims, unreduced = _names(layout)
    if not layout.is_even:
        raise NotationError(f"arrays of JAX divide evenly; got {layout}; pad the shape")
    mesh = layout.mesh
    by_id = {device.id: device for device in (jax.devices() if devices is None else devices)}
    if missing := [i for i in mesh.device_ids if i not in by_id]:
        raise NotationError(
            f"each device id of the mesh is that of a device; got no device for {missing[:8]} "
            f"among those with ids {sorted(by_id)[:16]}; pass devices=..., or change the mesh"
        )
    grid = np.array([by_id[i] for i in mesh.device_ids], dtype=object).reshape(mesh.shape)
    types = [AxisType.Explicit if n in unreduced else AxisType.Auto for n in mesh.axis_names]
    return NamedSharding(
        jax.sharding.Mesh(grid, mesh.axis_names, axis_types=tuple(types)),
        PartitionSpec(*dims, unreduced=frozenset(unreduced)),
    )


def _dim(s: Scanner, mesh: Mesh, used: set[int]) -> tuple[int, ...]:
    """Reads an entry of a PartitionSpec: the axes that shard its dim."""
    if s.accept("None"):
        return ()
    if s.accept("("):
        return _axes(s, ")", mesh, used)
    if any(map(s.peek, ("UNCONSTRAINED", "P.UNCONSTRAINED", "PartitionSpec.UNCONSTRAINED"))):
        s.fail("a layout says what each device holds, which UNCONSTRAINED leaves to the compiler")
    return (_axis(s, mesh, used),)


def _axes(s: Scanner, close: str, mesh: Mesh, used: set[int]) -> tuple[int, ...]:
    """Reads axes separated by commas, up to and including `close`."""
    axes: list[int] = []
    while not s.accept(close):
        axes.append(_axis(s, mesh, used))
        if not s.peek(close):
            s.expect(",")
    return tuple(axes)


def _axis(s: Scanner, mesh: Mesh, used: set[int]) -> int:
    """Reads the name of an axis, a Python string; fails if it is in `used`, else adds it there."""
    s.peek("")  # skips white space
    start = s.position
    string = _STRING.match(s.text, start)
    if string is None:
        s.fail("a PartitionSpec has None, the name of an axis in quotes, or several in () here")
    s.position = string.end()
    name = _ESCAPE.sub(lambda escape: _unescaped(s, start, escape), string[1] or string[2] or "")
    if name not in mesh.axis_names:
        s.fail(f"a PartitionSpec has axes of its mesh, {mesh.axis_names}", start)
    axis = mesh.axis(name)
    if axis in used:
        s.fail("a PartitionSpec has an axis once", start)
    used.add(axis)
    return axis


def _unescaped(s: Scanner, start: int, escape: re.Match[str]) -> str:
    code = int(escape[1] or escape[2] or escape[3] or "0", 16)
    if escape[4] not in {None, *_ESCAPED} or code > 0x10FFFF:
        s.fail(f"a name has the escapes that repr writes, not {escape[0]!r}", start)
    return _ESCAPED[escape[4]] if escape[4] else chr(code)


def _names(layout: Layout) -> tuple[tuple[str | tuple[str, ...] | None, ...], tuple[str, ...]]:
    """The entries of a PartitionSpec, as JAX keeps them, and its unreduced axes."""
    spec, mesh = layout.spec, layout.mesh
    if not spec.is_plain:
        raise NotationError(
            f"a PartitionSpec has whole axes only; got {layout}; write the mesh with more axes "
            "(Mesh.split) to use parts of one; strided shards cannot be expressed"
        )
    if set(layout.rules) - {"ceil"}:
        raise NotationError(
            f"JAX cuts dims into chunks of ceil(n / k); got {layout}; pad the shape"
        )
    if kinds := {partial.kind for partial in spec.partial} - {"sum"}:
        raise NotationError(
            f"unreduced axes hold partial sums; got {layout}, with {sorted(kinds)}; combine first"
        )
    names = [tuple(mesh.axis_names[axis] for axis in axes) for axes in spec.plain_dims]
    dims = tuple(n if len(n) > 1 else n[0] if n else None for n in names)
    return dims, tuple(mesh.axis_names[axis] for axis in spec.partial_axes)


def _mesh(sharding: "jax.sharding.NamedSharding") -> Mesh:
    import jax

    mesh = sharding.mesh
    names: Iterable[Any] = mesh.axis_names
    if other := [name for name in names if not isinstance(name, str) or not name]:
        raise NotationError(f"an axis is called by a string that is not empty; got {other}")
    if isinstance(mesh, jax.sharding.AbstractMesh):
        return Mesh(mesh.axis_sizes, mesh.axis_names)
    if mesh.empty:
        raise NotationError("a mesh has devices; got a NamedSharding on an empty one")
    ids = mesh.device_ids.reshape(-1).tolist()
    order = sharding._logical_device_ids  # indices into the mesh's devices, in the order to use
    return Mesh(
        mesh.device_ids.shape, mesh.axis_names, ids if order is None else [ids[i] for i in order]
    )


def _from_hlo(sharding: "jax.sharding.Sharding", shape: tuple[int, ...]) -> Layout:
    """The layout from XLA's text, whose numbers are indices into the sharding's device list."""
    devices: Sequence[Any] = sharding._device_assignment
    text = str(sharding._to_xla_hlo_sharding(len(shape)))
    indices = None if "device" in text else Mesh((len(devices),), ("a",))
    layout = hlo.parse(text, shape=tuple(shape), mesh=indices)
    ids = tuple(devices[index].id for index in layout.mesh.device_ids)
    mesh = Mesh(layout.mesh.shape, layout.mesh.axis_names, ids)
    return Layout(layout.shape, mesh, layout.spec, layout.rules)
