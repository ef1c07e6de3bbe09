r"""Shardy: the attribute on a tensor in MLIR, `#sdy.sharding<@mesh, [{"x"}, {"y":(1)2}]>`.

Each dim has the axes that shard it, major to minor; `"y":(1)2` is a part of an axis, our `SubAxis`.
Axes in `unreduced={...}` hold partial sums, the only kind that Shardy has. The mesh is written in
the attribute, `mesh<["x"=2, "y"=4]>`, or is the one that the module defines under this name. Dims
are cut by XLA's rule, `ceil`.

Two things that only guide the compiler are read and dropped: priorities, `{"x"}p1`, the order in
which shardings propagate; and `replicated={...}`, which keeps propagation from using these axes. An
open dim, `{"x", ?}`, is refused: the compiler may shard it further, so the attribute does not say
where the tensor lies (nor does JAX's `UNCONSTRAINED`).

Reference:
    https://openxla.org/shardy/sharding_representation and the attributes of its `sdy` dialect.
"""

import functools
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from shardspec.base.axis import Axis, SubAxis, index, overlap
from shardspec.base.partial import Partial
from shardspec.errors import LayoutError, MeshError, NotationError
from shardspec.layout.layout import Layout
from shardspec.layout.mesh import Mesh
from shardspec.notation._build import build, check_rule, check_sums, checked_axis, read_part
from shardspec.notation._scanner import Scanner
from shardspec.remesh import on_mesh

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*")
_STRING = re.compile(r'"((?:[^"\\\n\v\f]|\\(?:[nt"\\]|[0-9A-Fa-f]{2}))*+)"')
_ESCAPE = re.compile(rb"\\([nt\"\\]|[0-9A-Fa-f]{2})")
_ESCAPED = {b"n": b"\n", b"t": b"\t", b'"': b'"', b"\\": b"\\"}

T = TypeVar("T")


def parse(text: str, *, shape: tuple[int, ...] | None = None, mesh: Mesh | None = None) -> Layout:
    """The layout that a sharding attribute describes, with or without `#sdy.sharding` before it.

    Args:
        text: The attribute.
        shape: Shape of the tensor; None for the smallest one that is cut evenly.
        mesh: Required if the text has only the name of a mesh, or an empty mesh, which stands for
            any. If the text has a full mesh, the layout is rewritten for this one.

    Raises:
        NotationError: the text is not a sharding, leaves a dim open, or contradicts its mesh or
            the shape; or a mesh is missing.

    Examples:
        >>> print(parse('#sdy.sharding<mesh<["x"=2, "y"=4]>, [{"y", "x"}, {}]>', shape=(16, 3)))
        (16, 3) as S10R on (2, 4)
        >>> str(parse('<@m, [{"x":(1)2}], unreduced={"x":(2)4}>', mesh=Mesh((8,), ("x",))).spec)
        'S(0:(1)2)+P(0:(2)4)'
    """
    s = Scanner(text, "a Shardy sharding")
    s.accept("#sdy.sharding")
    s.expect("<")
    start = s.position
    written = None
    if s.peek("@"):
        _name(s)
    else:
        s.expect("mesh")
        written = _mesh(s)
    devices = mesh if written is None else written
    if devices is None:
        s.fail("a sharding that names its mesh, or has an empty one, is read with mesh=...", start)
    axis = functools.partial(
        _axis, mesh=devices, names={n: i for i, n in enumerate(devices.axis_names)}
    )
    s.expect(",")
    s.expect("[")
    dims = _items(s, functools.partial(_dim, axis=axis), "]")
    lists: dict[str, list[Axis]] = {}
    while s.accept(","):
        at = s.position
        key = s.name()
        if key not in ("replicated", "unreduced") or key in lists:
            s.fail("a sharding has one list of replicated axes and one of unreduced ones", at)
        s.expect("=")
        s.expect("{")
        lists[key] = _items(s, axis, "}")
    s.expect(">")
    s.end()
    if overlap(axis for axes in (*dims, *lists.values()) for axis in axes):
        raise NotationError(
            f"a sharding uses an axis once; got {text[:200]}", text=text, position=0
        )
    if not dims and devices.size == 1:  # a maximal sharding has no dims, whatever the tensor's rank
        dims = [[] for _ in shape or ()]
    partial = tuple(map(Partial, lists.get("unreduced", ())))
    layout = build(text, tuple(map(tuple, dims)), partial, devices, shape)
    if mesh is None or mesh is devices:
        return layout
    if mesh.size != devices.size:
        s.fail(
            f"the sharding's mesh has the {mesh.size} devices of the one it is rewritten for", start
        )
    try:
        return on_mesh(layout, mesh)
    except LayoutError as error:
        raise NotationError(str(error), text=text, position=start) from None


def parse_mesh(text: str) -> Mesh:
    """The mesh of a definition in a module, or of a mesh attribute.

    Attributes after a definition, `{stablehlo.mesh = ...}` as JAX prints them, are dropped.

    Raises:
        NotationError: the text is not a mesh, or is an empty one, which has no devices.

    Examples:
        >>> parse_mesh('sdy.mesh @mesh = <["x"=2, "y"=2], device_ids=[3, 2, 1, 0]>')
        Mesh((2, 2), ('x', 'y'), (3, 2, 1, 0))
    """
    s = Scanner(text, "a Shardy mesh")
    is_definition = s.accept("sdy.mesh")
    if is_definition:
        _name(s)
        s.expect("=")
    if s.accept("#sdy.") or s.peek("mesh"):
        s.expect("mesh")
    mesh = _mesh(s)
    if is_definition and s.peek("{"):
        s.skip_braces("a list of attributes")
    s.end()
    if mesh is None:
        raise NotationError(
            "an empty mesh stands for any mesh and has no devices of its own; "
            f"got {text[:200]!r}; use the mesh that the module's other tensors are on",
            text=text,
            position=0,
        )
    return mesh


def dump(layout: Layout, *, mesh_name: str | None = None) -> str:
    """The layout's attribute, as MLIR prints it.

    Args:
        layout: The layout to print.
        mesh_name: Name of the module's mesh to refer to; None writes the mesh itself.

    Raises:
        NotationError: the layout is strided, has partial results other than sums, has a dim that is
            not cut by `ceil`, or its devices are not numbered from 0 on.

    Examples:
        >>> from shardspec import Spec
        >>> layout = Layout((8, 8), Mesh((2, 4), ("x", "y")), Spec.parse("S1R+P0"))
        >>> print(dump(layout))
        #sdy.sharding<mesh<["x"=2, "y"=4]>, [{"y"}, {}], unreduced={"x"}>
        >>> print(dump(layout, mesh_name="mesh"))
        #sdy.sharding<@mesh, [{"y"}, {}], unreduced={"x"}>
    """
    check_sums(layout, "Shardy")
    check_rule(layout, "ceil", "Shardy")
    mesh, mesh_text = layout.mesh, _mesh_text(layout.mesh)
    is_maximal = mesh_text.startswith("<[]")
    axes = functools.partial(_axes_text, mesh)
    dims = [] if is_maximal else [axes(layout.spec.sharding_of(d)) for d in range(layout.spec.ndim)]
    unreduced = axes(p.axis for p in layout.spec.partial)
    devices = f"mesh{mesh_text}" if mesh_name is None else f"@{_symbol(mesh_name)}"
    tail = f", unreduced={unreduced}" if layout.spec.partial and not is_maximal else ""
    return f"#sdy.sharding<{devices}, [{', '.join(dims)}]{tail}>"


def dump_mesh(mesh: Mesh, *, name: str = "mesh") -> str:
    """The definition of a mesh in a module.

    Raises:
        NotationError: the devices are not numbered from 0 on. (A single device may have any
            number.)

    Examples:
        >>> dump_mesh(Mesh((2, 2), ("x", "y"), (3, 2, 1, 0)))
        'sdy.mesh @mesh = <["x"=2, "y"=2], device_ids=[3, 2, 1, 0]>'
    """
    return f"sdy.mesh @{_symbol(name)} = {_mesh_text(mesh)}"


def _name(s: Scanner) -> None:
    """Reads a symbol, `@mesh` or `@"my mesh"`, and drops it."""
    s.expect("@")
    if s.peek('"'):
        _string(s)
    else:
        _token(s, _IDENTIFIER, "the name of a mesh")


def _mesh(s: Scanner) -> Mesh | None:
    """Reads `<["x"=2, "y"=4], device_ids=[...]>`; None for the empty mesh."""
    s.expect("<")
    start = s.position
    s.expect("[")
    axes = _items(s, _mesh_axis, "]")
    ids: list[int] = []
    if s.accept(","):
        s.expect("device_ids")
        s.expect("=")
        s.expect("[")
        ids = _items(s, Scanner.integer, "]")
    s.expect(">")
    if not axes and not ids:
        return None
    if axes and ids and sorted(ids) != list(range(len(ids))):
        s.fail("a mesh with axes has the devices 0, 1, ... in some order", start)
    try:
        return Mesh(tuple(length for _, length in axes), tuple(name for name, _ in axes), ids)
    except MeshError as error:
        raise NotationError(str(error), text=s.text, position=start) from None


def _mesh_axis(s: Scanner) -> tuple[str, int]:
    name = _string(s)
    s.expect("=")
    return name, s.integer()


def _dim(s: Scanner, axis: Callable[[Scanner], Axis]) -> list[Axis]:
    """Reads `{"x", "y"}p1`."""
    s.expect("{")
    axes = _items(s, axis, "}")
    if s.accept("p"):
        s.integer()
    return axes


def _axis(s: Scanner, mesh: Mesh, names: dict[str, int]) -> Axis:
    """Reads `"x"` or `"x":(1)2`."""
    if s.peek("?"):
        s.fail("a dim that is open may be sharded further; leave out the '?' to keep it as it is")
    start = s.position
    name = _string(s)
    if name not in names:
        s.fail("a sharding uses axes of its mesh", start)
    return checked_axis(s, mesh, names[name], read_part(s) if s.accept(":") else None, start)


def _items(s: Scanner, read: Callable[[Scanner], T], close: str) -> list[T]:
    """Reads items separated by commas, up to and including `close`."""
    items: list[T] = []
    while not s.accept(close):
        if items:
            s.expect(",")
        items.append(read(s))
    return items


def _token(s: Scanner, pattern: re.Pattern[str], wanted: str) -> str:
    s.peek("")  # skips white space
    match = pattern.match(s.text, s.position)
    if match is None:
        s.fail(f"{s.what} has {wanted} here")
    s.position = match.end()
    return match[0]


def _string(s: Scanner) -> str:
    """Reads a string in double quotes, with MLIR's escapes: bytes of UTF-8 in hexadecimal."""
    s.peek("")
    start = s.position
    content = _token(s, _STRING, "a name in double quotes")[1:-1]
    if "\\" not in content:
        return content
    raw = _ESCAPE.sub(_unescaped, content.encode("utf-8", "surrogatepass"))
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        s.fail("a name is text in UTF-8", start)


def _unescaped(match: re.Match[bytes]) -> bytes:
    return _ESCAPED.get(match[1]) or bytes.fromhex(match[1].decode())


def _quoted(name: str) -> str:
    """`name` as MLIR prints strings."""
    if name.isascii() and name.isprintable() and not set(name) & {'"', "\\"}:
        return f'"{name}"'
    raw = name.replace("\\", "\\\\").encode("utf-8", "surrogatepass")
    return '"' + "".join(chr(b) if 32 <= b < 127 and b != 34 else f"\\{b:02X}" for b in raw) + '"'


def _symbol(name: str) -> str:
    return name if _IDENTIFIER.fullmatch(name) else _quoted(name)


def _mesh_text(mesh: Mesh) -> str:
    """`<["x"=2], device_ids=[1, 0]>`; a single device that is not 0 has a mesh without axes."""
    ids = mesh.device_ids
    if mesh.size == 1 and (ids[0] or not mesh.ndim):
        return f"<[], device_ids=[{ids[0]}]>"
    axes = ", ".join(
        f"{_quoted(n)}={length}" for n, length in zip(mesh.axis_names, mesh.shape, strict=True)
    )
    if ids == range(mesh.size):
        return f"<[{axes}]>"
    if sorted(ids) != list(range(mesh.size)):
        raise NotationError(
            f"Shardy's devices are numbered from 0 on, in any order; got {mesh}; "
            "renumber them for the dump, and keep the real numbers beside it"
        )
    return f"<[{axes}], device_ids=[{', '.join(map(str, ids))}]>"


def _axes_text(mesh: Mesh, axes: Iterable[Axis]) -> str:
    names = (
        f"{_quoted(mesh.axis_names[index(axis)])}"
        + (f":({axis.pre}){axis.size}" if isinstance(axis, SubAxis) else "")
        for axis in axes
    )
    return "{" + ", ".join(names) + "}"
