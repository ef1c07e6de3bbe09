"""Alpa's notation, which this library uses for its specs, and ColossalAI's, almost the same.

Each dim is `R` (replicated) or `S` with the axes that shard it, by their index in the mesh, major
to minor. There are three styles: "plain", `S01R`, which is `str(spec)`; "superscript", `S⁰¹R`, as
papers print it; and "colossal", ColossalAI's list, `[S01, R]`. Plain specs go beyond Alpa: `+P2` is
for partial sums, `S(0:(1)2)` for parts of axes, `S[2]0` for strided dims; see `Spec`. Dims are cut
by XLA's rule, `ceil`, because Alpa runs on XLA.

Reference:
    Alpa (OSDI 2022), section 4.1 and Table 1; ColossalAI's `colossalai/tensor/sharding_spec.py`.
"""

from typing import Literal, get_args

from shardspec.base.axis import Axis, Entry, Split
from shardspec.base.partial import Partial, Reduction
from shardspec.errors import NotationError
from shardspec.layout.layout import Layout
from shardspec.layout.mesh import Mesh
from shardspec.notation._build import build, check_rule, checked_axis, read_part
from shardspec.notation._scanner import Scanner

Style = Literal["plain", "superscript", "colossal"]

_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_DIGITS = "0123456789" + _SUPERSCRIPTS

_LIMIT = 10_000
"""Most characters of a text: enough for any spec, and quick to read."""


def parse(text: str, *, shape: tuple[int, ...] | None = None, mesh: Mesh | None = None) -> Layout:
    """The layout that a spec in any of the styles describes on a mesh.

    Args:
        text: The spec; a ColossalAI spec may also be without brackets.
        shape: Shape of the tensor; None for the smallest one that is cut evenly.
        mesh: The devices; required, because the text names none.

    Raises:
        NotationError: the text is not a spec, uses an axis twice or one that the mesh does not
            have, or has another rank than the shape; or there is no mesh.

    Examples:
        >>> mesh = Mesh((2, 2), ("x", "y"))
        >>> print(parse("S⁰¹R", mesh=mesh))
        (4, 1) as S01R on (2, 2)
        >>> print(parse("[R, S1]", shape=(3, 3), mesh=mesh))
        (3, 3) as RS1 on (2, 2)
    """
    if mesh is None:
        raise NotationError("a spec names no devices; pass mesh=...", text=text, position=0)
    s = Scanner(text, "a spec")
    if len(text) > _LIMIT:
        s.fail(f"a spec has at most {_LIMIT} characters", _LIMIT)
    in_brackets = s.accept("[")
    dims: list[tuple[Entry, ...]] = []
    partial: list[Partial] = []
    if in_brackets or not s.accept("()"):
        while s.peek("R") or s.peek("S"):
            dims.append(_dim(s, mesh))
            if ("," in text or in_brackets) and not s.accept(","):
                break
        if not dims and not in_brackets:
            s.fail("a spec has R, or S with axes, for each dim, or is '()' for a scalar")
    if in_brackets:
        s.expect("]")
    while not in_brackets and s.accept("+P"):
        kind: Reduction = next((kind for kind in get_args(Reduction) if s.accept(kind)), "sum")
        partial.append(Partial(_axis(s, mesh), kind))
    s.end()
    return build(text, tuple(dims), tuple(partial), mesh, shape)


def dump(layout: Layout, *, style: Style = "plain") -> str:
    """The layout's spec.

    Args:
        layout: The layout to print.
        style: "plain" can express all specs; "superscript" those of whole axes below 10;
            "colossal" only those of the latter that have no partial results.

    Raises:
        NotationError: the style cannot express the spec, or a dim is not cut by `ceil`.

    Examples:
        >>> from shardspec import Spec
        >>> layout = Layout((8, 8), Mesh((2, 2), ("x", "y")), Spec.parse("RS01"))
        >>> dump(layout), dump(layout, style="superscript"), dump(layout, style="colossal")
        ('RS01', 'RS⁰¹', '[R, S01]')
    """
    if style not in get_args(Style):
        raise NotationError(
            f"a style of Alpa's notation is one of {get_args(Style)}; got {style!r}"
        )
    check_rule(layout, "ceil", "Alpa")
    spec = layout.spec
    if style == "plain":
        return str(spec)
    used = [*spec.axes, *spec.partial_axes]
    if not spec.is_plain or max(used, default=0) >= 10:
        raise NotationError(
            f"the style {style!r} has a digit for each axis, a whole one; got {spec}; use the "
            "style 'plain', or a mesh whose axes are the parts: on_mesh(layout, ...)"
        )
    if style == "superscript":
        return str(spec).translate(str.maketrans(_DIGITS[:10], _SUPERSCRIPTS))
    if spec.partial:
        raise NotationError(
            f"ColossalAI's specs have no partial results; got {spec}; combine these before "
            "(reshard), or use the style 'plain'"
        )
    dims = ["S" + "".join(map(str, axes)) if axes else "R" for axes in spec.plain_dims]
    return f"[{', '.join(dims)}]"


def _dim(s: Scanner, mesh: Mesh) -> tuple[Entry, ...]:
    """Reads `R`, or `S` with the entries that shard the dim."""
    if s.accept("R"):
        return ()
    s.expect("S")
    entries: list[Entry] = []
    while not entries or any(map(s.peek, ("[", "(", *_DIGITS))):
        start = s.position
        if not s.accept("["):
            entries.append(_axis(s, mesh))
            continue
        factor = s.integer()
        s.expect("]")
        if not factor:
            s.fail("a split makes at least one piece", start)
        entries.append(Split(factor))
    return tuple(entries)


def _axis(s: Scanner, mesh: Mesh) -> Axis:
    """Reads `0`, `⁰`, `(10)` or `(0:(1)2)`."""
    start = s.position
    if not s.accept("("):
        digit = next((i for i, digit in enumerate(_DIGITS) if s.accept(digit)), None)
        if digit is None:
            s.fail("an axis is a digit, or a number in parentheses")
        return checked_axis(s, mesh, digit % 10, None, start)
    index = s.integer()
    part = read_part(s) if s.accept(":") else None
    s.expect(")")
    return checked_axis(s, mesh, index, part, start)
