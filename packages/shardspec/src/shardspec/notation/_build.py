"""What the notations share: the parts of axes in their texts, and the layout at the end."""

import math
import sys

from shardspec.base.axis import Axis, Entry, Split, SubAxis
from shardspec.base.chunking import ChunkingRule
from shardspec.base.partial import Partial
from shardspec.errors import LayoutError, NotationError, SpecError, UnknownAxisError
from shardspec.layout.layout import Layout
from shardspec.layout.mesh import Mesh
from shardspec.layout.spec import Spec
from shardspec.notation._scanner import Scanner


def read_part(s: Scanner) -> tuple[int, int]:
    """Read `(1)2`: pre-size and size of a part of an axis."""
    s.expect("(")
    pre = s.integer()
    s.expect(")")
    return pre, s.integer()


def checked_axis(
    s: Scanner, mesh: Mesh, axis: int, part: tuple[int, int] | None, start: int
) -> Axis:
    """The axis or a part of it, read from `start` on; an error if the mesh does not have it."""
    try:
        found = axis if part is None else SubAxis(axis, *part)
        mesh.length(found)
    except (SpecError, UnknownAxisError) as error:
        s.fail(str(error), start)
    return found


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
        text: What was read, for the error.
        dims: What shards each dim, as in `Spec`.
        partial: What holds partial results.
        mesh: The devices.
        shape: Of the tensor; None for the smallest that is cut evenly.
        rule: How the notation cuts what is uneven.

    Raises:
        NotationError: the text contradicts itself, the mesh or the shape.
    """
    try:
        if shape is None:
            shape = tuple(math.prod(_pieces(mesh, e) for e in entries) for entries in dims)
            if max(shape, default=0) > sys.maxsize:
                raise LayoutError(f"a dim has at most {sys.maxsize} pieces")
        return Layout(shape, mesh, Spec(dims, partial), rule)
    except (SpecError, LayoutError, UnknownAxisError) as error:
        raise NotationError(str(error), text=text, position=0) from None


def check_sums(layout: Layout, notation: str) -> None:
    """Raise `NotationError` if a layout is strided or has partial results other than sums."""
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
    """Raise `NotationError` if a layout cuts a dim otherwise than the notation's readers would."""
    if Layout(layout.shape, layout.mesh, layout.spec, rule) != layout:
        raise NotationError(
            f"{notation} cuts all dims by the rule {rule!r}; got {layout}; give the layout that "
            "rule, or dims that are cut evenly"
        )


def _pieces(mesh: Mesh, entry: Entry) -> int:
    return entry.factor if isinstance(entry, Split) else mesh.length(entry)
