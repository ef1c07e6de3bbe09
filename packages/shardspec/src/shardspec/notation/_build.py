"""Shared by the notations: reading parts of axes, building the layout, checking it for a dump."""

import math
import sys

from shardspec.base.axis import Axis, Entry, SubAxis
from shardspec.base.chunking import ChunkingRule
from shardspec.base.partial import Partial
from shardspec.errors import LayoutError, NotationError, SpecError, UnknownAxisError
from shardspec.layout.layout import Layout
from shardspec.layout.mesh import Mesh, n_parts
from shardspec.layout.spec import Spec
from shardspec.notation._scanner import Scanner


def read_part(s: Scanner) -> tuple[int, int]:
    """Reads `(1)2`: the pre-size and size of a part of an axis."""
    s.expect("(")
    pre = s.integer()
    s.expect(")")
    return pre, s.integer()


def checked_axis(
    s: Scanner, mesh: Mesh, axis: int, part: tuple[int, int] | None, start: int
) -> Axis:
    """The axis, or the part of it; fails at position `start` if the mesh does not have it."""
    try:
        checked = axis if part is None else SubAxis(axis, *part)
        mesh.length(checked)
    except (SpecError, UnknownAxisError) as error:
        s.fail(str(error), start)
    return checked


def build(
    text: str,
    dims: tuple[tuple[Entry, ...], ...],
    partial: tuple[Partial, ...],
    mesh: Mesh,
    shape: tuple[int, ...] | None,
    rule: ChunkingRule = "ceil",
) -> Layout:
    """The layout of `dims` and `partial` on `mesh`.

    Args:
        text: The text that was read, for the error.
        dims: What shards each dim, as in `Spec`.
        partial: The axes with partial results, as in `Spec`.
        mesh: The devices.
        shape: Shape of the tensor; None for the smallest one that is cut evenly.
        rule: How the notation cuts uneven dims.

    Raises:
        NotationError: the text contradicts itself, the mesh or the shape.
    """
    try:
        if shape is None:
            shape = tuple(math.prod(n_parts(mesh, e) for e in entries) for entries in dims)
            if max(shape, default=0) > sys.maxsize:
                raise LayoutError(f"a dim has at most {sys.maxsize} pieces")
        return Layout(shape, mesh, Spec(dims, partial), rule)
    except (SpecError, LayoutError, UnknownAxisError) as error:
        raise NotationError(str(error), text=text, position=0) from None


def check_sums(layout: Layout, notation: str) -> None:
    """Raises `NotationError` if a layout is strided or has partial results other than sums."""
    if not layout.is_contiguous:
        raise NotationError(
            f"{notation} cannot keep pieces of a dim together; got {layout}; give the tensor a dim "
            "for the pieces and one for what is cut in each, or use the notation 'torch'"
        )
    others = [partial.kind for partial in layout.spec.partial if partial.kind != "sum"]
    if others:
        raise NotationError(
            f"the partial results of {notation} are sums; got {', '.join(others)} in {layout}; "
            "combine these before (reshard)"
        )


def check_rule(layout: Layout, rule: ChunkingRule, notation: str) -> None:
    """Raises `NotationError` if a layout does not cut its dims by the notation's `rule`."""
    if Layout(layout.shape, layout.mesh, layout.spec, rule) != layout:
        raise NotationError(
            f"{notation} cuts all dims by the rule {rule!r}; got {layout}; give the layout that "
            "rule, or dims that are cut evenly"
        )
