"""OneFlow's SBP: for each axis of the mesh, `S(0)` with the dim that it splits, or `B`, or `P`.

B (broadcast) is our replicated, P a partial sum. Several axes may split a dim; the first of them is
major. Dims are cut by OneFlow's rule, `balanced`, axis after axis; OneFlow itself accepts uneven
dims only on meshes of one axis.

`parse` reads the short form, `(S(0), B)`, also in brackets and with quotes as in configurations,
and the form of programs, `(oneflow.sbp.split(dim=0), oneflow.sbp.broadcast)`.

Reference:
    OneFlow's page "2D SBP"; in its `core/job`, `ParseSbpParallelFromString` (sbp_parallel.cpp) for
    the texts and `GetTensorSliceView4ParallelRank` (nd_sbp_util.cpp) for the placement. AutoDDL,
    section 4.1.
"""

from typing import Literal, get_args

from shardspec.base.partial import Partial
from shardspec.errors import NotationError
from shardspec.layout.layout import Layout
from shardspec.layout.mesh import Mesh
from shardspec.notation._build import build, check_rule, check_sums
from shardspec.notation._scanner import Scanner

Style = Literal["short", "python"]

_WORDS = {"split": "S", "broadcast": "B", "partial_sum": "P", "S": "S", "B": "B", "P": "P"}
"""How an entry may begin, with or without `oneflow.sbp.` before it."""

_PRINTED = {"B": "broadcast", "P": "partial_sum"}
"""The names that OneFlow prints."""

_MAX_DIMS = 20
"""Most dims that a tensor has: OneFlow's `SHAPE_MAX_AXIS_SIZE`."""


def parse(text: str, *, shape: tuple[int, ...] | None = None, mesh: Mesh | None = None) -> Layout:
    """The layout that an SBP describes on a mesh.

    Args:
        text: An entry for each axis, in parentheses or brackets; or a single entry.
        shape: Shape of the tensor; None for the smallest one that is cut evenly, which ends with
            the last dim that is split.
        mesh: The devices, OneFlow's placement; required, because the text names none.

    Raises:
        NotationError: the text is not an SBP, does not have one entry for each axis, or splits a
            dim that the shape does not have; or there is no mesh.

    Examples:
        >>> mesh = Mesh((2, 3), ("x", "y"))
        >>> print(parse("(S(1), P)", shape=(5, 8), mesh=mesh))
        (5, 8) as RS0+P1 on (2, 3)
        >>> print(parse("(oneflow.sbp.split(dim=0), oneflow.sbp.broadcast)", mesh=mesh))
        (2,) as S0 on (2, 3)
    """
    if mesh is None:
        raise NotationError("an SBP names no devices; pass mesh=...", text=text, position=0)
    s = Scanner(text, "an SBP")
    close = "]" if s.accept("[") else ")" if s.accept("(") else ""
    n_dims = _MAX_DIMS if shape is None else len(shape)
    entries: list[int | str] = []
    while not (close and s.accept(close)):
        if len(entries) == mesh.ndim:
            s.fail(f"an SBP has an entry for each axis of its mesh, here {mesh.ndim}, and no more")
        entries.append(_entry(s, n_dims))
        if not close:
            break
        if not s.peek(close):
            s.expect(",")
    if len(entries) < mesh.ndim:
        s.fail(f"an SBP has an entry for each axis of its mesh, here {mesh.ndim}")
    s.end()
    if shape is None:
        n_dims = 1 + max((entry for entry in entries if isinstance(entry, int)), default=-1)
    dims = tuple(tuple(a for a, entry in enumerate(entries) if entry == d) for d in range(n_dims))
    partial = tuple(Partial(axis) for axis, entry in enumerate(entries) if entry == "P")
    return build(text, dims, partial, mesh, shape, "balanced")


def dump(layout: Layout, *, style: Style = "short") -> str:
    """The layout's SBP; a single entry has no parentheses.

    Args:
        layout: The layout to print.
        style: "short", `S(0)`, or "python", as OneFlow prints `tensor.sbp`.

    Raises:
        NotationError: the layout uses parts of axes, splits a dim by a later axis before an earlier
            one, is strided, has partial results other than sums, or has a dim that is not cut by
            `balanced`.

    Examples:
        >>> from shardspec import Spec
        >>> layout = Layout((8, 4), Mesh((2, 2, 2), ("x", "y", "z")), Spec.parse("S02R+P1"))
        >>> dump(layout)
        '(S(0), P, S(0))'
        >>> dump(layout, style="python")
        '(oneflow.sbp.split(dim=0), oneflow.sbp.partial_sum, oneflow.sbp.split(dim=0))'
    """
    if style not in get_args(Style):
        raise NotationError(f"a style of an SBP is one of {get_args(Style)}; got {style!r}")
    mesh, spec = layout.mesh, layout.spec
    check_sums(layout, "OneFlow")
    if not spec.is_plain:
        raise NotationError(
            f"an SBP uses whole axes; got {layout}; write it on a mesh whose axes are the parts: "
            "on_mesh(layout, layout.mesh.split(...))"
        )
    entries: list[int | str] = ["B"] * mesh.ndim
    for dim, axes in enumerate(spec.plain_dims):
        order = [axis for axis in axes if mesh.shape[axis] > 1]
        if order != sorted(order):
            raise NotationError(
                f"in an SBP the earlier of two axes is the major one; got {axes} for dim {dim} of "
                f"{layout}; write it on a mesh with the axes in that order: on_mesh(layout, ...)"
            )
        for axis in axes:
            entries[axis] = dim
    if spec.ndim > _MAX_DIMS:
        raise NotationError(f"OneFlow's tensors have at most {_MAX_DIMS} dims; got {layout}")
    for partial in spec.partial_axes:
        entries[partial] = "P"
    check_rule(layout, "balanced", "OneFlow")
    if style == "python":
        texts = [_PRINTED[e] if isinstance(e, str) else f"split(dim={e})" for e in entries]
        return f"({', '.join(f'oneflow.sbp.{t}' for t in texts)}{',' if mesh.ndim == 1 else ''})"
    texts = [e if isinstance(e, str) else f"S({e})" for e in entries]
    return texts[0] if mesh.ndim == 1 else f"({', '.join(texts)})"


def _entry(s: Scanner, n_dims: int) -> int | str:
    """Reads an entry: the dim that is split, "B" or "P"."""
    quote = next((q for q in "'\"" if s.accept(q)), "")
    any(map(s.accept, ("oneflow.sbp.", "flow.sbp.")))
    kind = next((kind for word, kind in _WORDS.items() if s.accept(word)), None)
    if kind is None:
        s.fail(f"an entry of an SBP is one of {', '.join(_WORDS)}")
    if kind == "S":
        s.expect("(")
        any(s.accept(name) and s.accept("=") for name in ("dim", "axis"))
        start = s.position
        dim = s.integer()
        if dim >= n_dims:
            s.fail(f"an SBP splits a dim of the tensor, below {n_dims}", start)
        s.expect(")")
    elif s.accept("("):
        s.expect(")")
    s.expect(quote)
    return dim if kind == "S" else kind
