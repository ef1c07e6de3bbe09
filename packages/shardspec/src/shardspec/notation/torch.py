"""DTensor: placements of `torch.distributed.tensor`, and their text.

`Partial` means partial results; `Shard(d)` cuts dim `d` by `torch.chunk` (the rule `nested`);
`_StridedShard(d, k)` takes a part of each of `k` pieces. The latter is for strided shards, and for
an axis that cuts a dim after axes to its right: `S10` is `(_StridedShard(0, 2), Shard(0))`. See
`_placements`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

from shardspec.base.partial import Reduction
from shardspec.errors import NotationError
from shardspec.layout.layout import Layout
from shardspec.layout.mesh import Mesh
from shardspec.notation._placements import PlainPlacement, layout_of, placements_of, written
from shardspec.notation._scanner import Scanner

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import Placement

_KINDS: tuple[Reduction, ...] = get_args(Reduction)
_MAX_NDIM = 64
"""Most dims of a tensor whose shape follows from the text: the limit of numpy."""


def parse(text: str, *, shape: tuple[int, ...] | None = None, mesh: Mesh | None = None) -> Layout:
    """The layout that `(Shard(dim=0), Replicate(), Partial(sum))` describes on a mesh.

    The short forms `S(0)`, `_S(0, 2)`, `R`, `P(sum)` are also read, with commas or without, and so
    is the order that torch prints with them: `S(0)[1]S(0)[0]` is cut along mesh axis 1 first.

    Args:
        text: Placements as torch prints them, or as programs write them.
        shape: Shape of the tensor; None for the smallest even one with the dims that the text
            names.
        mesh: Has an axis for each placement; required.

    Raises:
        NotationError: the text is not a list of placements, has more or fewer of them than the mesh
            has axes, a kind of partial results that no layout has, a dim that the tensor does not
            have, or describes what no layout can (see `from_placements`).

    Examples:
        >>> from shardspec import Mesh
        >>> mesh = Mesh((2, 2), ("dp", "tp"))
        >>> str(parse("(_StridedShard(dim=0, sf=2), Shard(dim=0))", mesh=mesh))
        '(4,) as S10 on (2, 2)'
        >>> str(parse("[R, P(max)]", shape=(3,), mesh=mesh))
        '(3,) as R+Pmax1 on (2, 2)'
    """
    if mesh is None:
        raise NotationError(
            "placements are for the axes of a mesh, which they do not name; pass mesh=...",
            text=text,
            position=0,
        )
    s = Scanner(text, "a list of placements")
    close = ")" if s.accept("(") else "]" if s.accept("[") else ""
    placements: list[PlainPlacement] = []
    positions: dict[int, dict[int, int]] = {}
    while not _ends(s, close):
        if len(placements) == mesh.ndim:
            s.fail(f"a list of placements, one for each of {mesh.ndim} mesh axes, ends here")
        placement = _placement(s, None if shape is None else len(shape))
        if isinstance(placement, tuple) and s.accept("["):
            axes = positions.setdefault(placement[0], {})
            if axes.setdefault(s.integer(), len(placements)) != len(placements):
                s.fail("each place in the order of a dim's axes is taken once")
            s.expect("]")
        placements.append(placement)
        s.accept(",")
    s.end()
    if len(placements) != mesh.ndim:
        s.fail(f"a list of placements has one for each of {mesh.ndim} mesh axes")
    for dim, axes in positions.items():
        if max(axes) != len(axes) - 1:
            s.fail(f"the order of the axes of dim {dim} counts from 0, without gaps", 0)
    orders = {dim: [axis for _, axis in sorted(axes.items())] for dim, axes in positions.items()}
    try:
        return layout_of(placements, mesh, shape, orders)
    except NotationError as error:
        raise NotationError(str(error), text=text, position=0) from None


def dump(layout: Layout) -> str:
    """The layout's placements as torch prints them.

    Raises:
        NotationError: the layout uses an axis in parts, which torch cannot, is cut or padded
            differently from torch, or has partial results of kinds that torch does not mix.

    Examples:
        >>> from shardspec import Layout, Mesh, Spec
        >>> mesh = Mesh((2, 3, 2), ("a", "b", "c"))
        >>> dump(Layout((8,), mesh, Spec.parse("S20")))
        '(_StridedShard(dim=0, sf=2), Replicate(), Shard(dim=0))'
    """
    return written(placements_of(layout))


def from_placements(
    placements: "Sequence[Placement]",
    mesh: "Mesh | DeviceMesh",
    shape: Sequence[int],
    shard_order: Sequence[tuple[int, Sequence[int]]] | None = None,
) -> Layout:
    """The layout of a DTensor of `shape`.

    Args:
        placements: One for each mesh axis.
        mesh: A `Mesh`, or torch's; axes of the latter without names are called `dim_0`, ...
        shape: Shape of the whole tensor.
        shard_order: For dims of the tensor, the mesh axes that shard them, in order, as in torch's
            `DTensorSpec.shard_order`; from left to right if None.

    Raises:
        NotationError: no layout can express this: another kind of placement (such as
            `_MaskPartial`) or of partial results; kinds that torch does not mix; axes that do not
            cut along digits (see `_placements`); or placements that do not fit the mesh and the
            shape.
    """
    ours = mesh if isinstance(mesh, Mesh) else _mesh(mesh)
    if len(placements) != ours.ndim:
        raise NotationError(
            f"there is a placement for each mesh axis; got {placements} for a mesh of {ours.ndim}"
        )
    plain = [_read(placement, len(shape)) for placement in placements]
    return layout_of(plain, ours, tuple(shape), dict(shard_order or ()))


def to_placements(layout: Layout) -> "tuple[Placement, ...]":
    """The placements of a DTensor with this layout.

    Raises:
        NotationError: as for `dump`.
    """
    from torch.distributed.tensor import placement_types as torch

    placements: list[torch.Placement] = []
    for plain in placements_of(layout):
        match plain:
            case None:
                placements.append(torch.Replicate())
            case str():
                placements.append(torch.Partial(plain))
            case dim, 1:
                placements.append(torch.Shard(dim))
            case dim, pieces:
                placements.append(torch._StridedShard(dim, split_factor=pieces))
    return tuple(placements)


def _ends(s: Scanner, close: str) -> bool:
    if close:
        return s.accept(close)
    s.peek("")  # skips white space
    return s.position == len(s.text)


def _placement(s: Scanner, ndim: int | None) -> PlainPlacement:
    """Reads one placement of a tensor with `ndim` dims (None: any number)."""
    if s.accept("_StridedShard") or s.accept("_S"):
        s.expect("(")
        dim = _dim(s, ndim)
        s.expect(",")
        if s.accept("sf") or s.accept("split_factor"):
            s.expect("=")
        pieces = s.integer()
        if pieces < 1:
            s.fail(f"a strided shard has at least one piece, not {pieces}")
        s.expect(")")
        return dim, pieces
    if s.accept("Shard") or s.accept("S"):
        s.expect("(")
        dim = _dim(s, ndim)
        s.expect(")")
        return dim, 1
    if s.accept("Replicate") or s.accept("R"):
        if s.accept("("):
            s.expect(")")
        return None
    if s.accept("Partial") or s.accept("P"):
        kind: Reduction = "sum"
        if s.accept("(") and not s.accept(")"):
            kind = _kind(s)
            s.expect(")")
        return kind
    s.fail("a placement is Shard, _StridedShard, Replicate or Partial, or S, _S, R or P for short")


def _dim(s: Scanner, ndim: int | None) -> int:
    s.peek("")  # skips white space
    start = s.position
    if s.accept("dim"):
        s.expect("=")
    negative = s.accept("-")
    dim = -s.integer() if negative else s.integer()
    if ndim is None and not 0 <= dim < _MAX_NDIM:
        s.fail(f"without shape=..., dims count from 0 to {_MAX_NDIM - 1}", start)
    if ndim is not None and not -ndim <= dim < ndim:
        s.fail(f"the tensor has {ndim} dims", start)
    return dim + (ndim or 0) if dim < 0 else dim


def _kind(s: Scanner) -> Reduction:
    if s.accept("reduce_op"):
        s.expect("=")
    quote = "'" if s.accept("'") else '"' if s.accept('"') else ""
    for kind in _KINDS:
        if s.accept(kind):
            s.expect(quote)
            return kind
    s.fail(f"partial results of a layout combine by one of {_KINDS}")


def _read(placement: Any, ndim: int) -> PlainPlacement:
    """A torch placement without torch. Exact types only: a subclass may mean something else."""
    from torch.distributed.tensor import placement_types as torch

    kind = type(placement)
    if kind is torch.Replicate:
        return None
    if kind is torch.Partial:
        for reduction in _KINDS:
            if placement.reduce_op == reduction:
                return reduction
    if kind in (torch.Shard, torch._StridedShard) and -ndim <= placement.dim < ndim:
        pieces = placement.split_factor if kind is torch._StridedShard else 1
        if pieces >= 1:
            return placement.dim % ndim, pieces
    raise NotationError(
        f"a layout can express Shard and _StridedShard of one of {ndim} dims, into at least one "
        f"piece, Replicate, and Partial by {_KINDS}; got {placement!r}"
    )


def _mesh(mesh: "DeviceMesh") -> Mesh:
    ranks = mesh.mesh
    names = mesh.mesh_dim_names or tuple(f"dim_{i}" for i in range(ranks.ndim))
    return Mesh(tuple(ranks.shape), names, ranks.flatten().tolist())
