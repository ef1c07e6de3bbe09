"""Hypothesis strategies: meshes, specs, layouts and pairs of layouts, valid by construction."""

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

from hypothesis import strategies as st

from shardspec.base.axis import Axis, Entry, Split, SubAxis, overlap
from shardspec.base.chunking import Chunking, ChunkingRule
from shardspec.base.partial import Partial, Reduction
from shardspec.layout.layout import Layout
from shardspec.layout.mesh import Mesh
from shardspec.layout.spec import Spec, sharding_axes

EVERY_RULE: tuple[ChunkingRule | Literal["sizes"], ...] = (*get_args(ChunkingRule), "sizes")
"""All ways to cut a dim, for the argument `chunking`; `sizes` stands for explicit sizes."""

Dims = tuple[tuple[int, ...], ...]


@st.composite
def meshes(
    draw: st.DrawFn,
    *,
    min_ndim: int = 1,
    max_ndim: int = 3,
    max_length: int = 4,
    max_size: int | None = None,
) -> Mesh:
    """Meshes with axes `a`, `b`, ... and device ids in any order, with gaps.

    Args:
        draw: Given by Hypothesis.
        min_ndim: Fewest axes; 0 allows the mesh of one device without axes.
        max_ndim: Most axes.
        max_length: Longest axis.
        max_size: Most devices; None for no limit but that of the axes.
    """
    shape: tuple[int, ...] = ()
    for _ in range(draw(st.integers(min_ndim, max_ndim))):
        left = max_length if max_size is None else max_size // math.prod(shape)
        shape += (draw(st.integers(1, min(max_length, left))),)
    size = math.prod(shape)
    ids = list(range(size + 2))
    if seed := draw(st.integers(0, 2**16)):  # a single draw for all devices
        random.Random(seed).shuffle(ids)
    return Mesh(shape, tuple("abcdefghij"[: len(shape)]), tuple(ids[:size]))


@st.composite
def specs(
    draw: st.DrawFn,
    mesh: Mesh,
    ndim: int,
    *,
    partial: bool = True,
    sub_axes: bool = False,
    strided: bool = False,
    mixed_kinds: bool = False,
) -> Spec:
    """Specs of tensors with `ndim` dims on `mesh`.

    Args:
        draw: Given by Hypothesis.
        mesh: The mesh whose axes are used, each at most once.
        ndim: Number of dims of the tensor.
        partial: Whether there may be partial results.
        sub_axes: Whether parts of an axis may be used, in any order.
        strided: Whether there may be splits, into 2 or 3 pieces.
        mixed_kinds: Whether partial results may be of several kinds, instead of one.
    """
    unused, partly = -1, -2
    places = st.sampled_from([unused, *([partly] if partial else []), *range(ndim)])
    kinds = st.sampled_from(get_args(Reduction))
    kind = draw(kinds)
    whole = range(mesh.ndim)
    axes = [part for axis in whole for part in draw(_parts(mesh, axis))] if sub_axes else [*whole]
    dims: list[tuple[Entry, ...]] = [()] * ndim
    partials = []
    for axis in draw(st.permutations(axes)):
        place = draw(places)
        if place == partly:
            partials.append(Partial(axis, draw(kinds) if mixed_kinds else kind))
        elif place != unused:
            split = (Split(draw(st.sampled_from([1, 1, 2, 3]))),) if strided else ()
            dims[place] += (*split, axis)
    return Spec(tuple(dims), tuple(partials))


@st.composite
def layouts(
    draw: st.DrawFn,
    *,
    even: bool = False,
    max_rank: int = 3,
    partial: bool = True,
    sub_axes: bool = False,
    strided: bool = False,
    mixed_kinds: bool = False,
    chunking: Sequence[ChunkingRule | Literal["sizes"]] = ("ceil",),
    mesh: Mesh | None = None,
) -> Layout:
    """Layouts of small tensors; unless `even`, of any sizes, including 0.

    Args:
        draw: Given by Hypothesis.
        even: Only sizes that all cuts divide.
        max_rank: Most dims.
        partial: Whether there may be partial results.
        sub_axes: Whether parts of an axis may be used; axes are longer then.
        strided: Whether dims may be strided.
        mixed_kinds: Whether partial results may be of several kinds.
        chunking: The rules to draw from for each dim; `EVERY_RULE` for all.
        mesh: The mesh; None for any.
    """
    if mesh is None:
        mesh = draw(meshes(max_length=8, max_size=24) if sub_axes else meshes())
    rank = draw(st.integers(0, max_rank))
    spec = draw(
        specs(
            mesh,
            rank,
            partial=partial,
            sub_axes=sub_axes,
            strided=strided,
            mixed_kinds=mixed_kinds,
        )
    )
    cuts = Layout((0,) * rank, mesh, spec).cuts
    sizes = st.integers(0, 2) if even else st.integers(0, 9)
    shape = tuple(draw(sizes) * (math.prod(parts) if even else 1) for parts in cuts)
    return Layout(shape, mesh, spec, draw(_chunkings(shape, cuts, chunking)))


@st.composite
def layout_pairs(
    draw: st.DrawFn,
    *,
    max_rank: int = 3,
    max_length: int = 3,
    even: bool = True,
    new_partial: bool = False,
    sub_axes: bool = False,
    strided: bool = False,
    mixed_kinds: bool = False,
    chunking: Sequence[ChunkingRule | Literal["sizes"]] = ("ceil",),
) -> tuple[Layout, Layout]:
    """Pairs of layouts of one tensor on one mesh.

    By default both are even, and the second has only partial results that the first has, too.

    Args:
        draw: Given by Hypothesis.
        max_rank: Most dims.
        max_length: Longest axis.
        even: Only sizes that all cuts of both layouts divide.
        new_partial: Whether the second may have any partial results.
        sub_axes: Whether parts of an axis may be used.
        strided: Whether dims may be strided.
        mixed_kinds: Whether partial results may be of several kinds.
        chunking: The rules to draw from, for each dim of each layout.
    """
    mesh = draw(meshes(max_length=max_length, max_size=24 if sub_axes else None))
    rank = draw(st.integers(0, max_rank))
    src, dst = (
        draw(
            specs(
                mesh,
                rank,
                partial=may_be_partial,
                sub_axes=sub_axes,
                strided=strided,
                mixed_kinds=mixed_kinds,
            )
        )
        for may_be_partial in (True, new_partial)
    )
    if not new_partial:
        axes = sharding_axes(dst)
        kept = [p for p in src.partial if not overlap([p.axis, *axes]) and draw(st.booleans())]
        dst = Spec(dst.dims, tuple(kept))
    cuts = [Layout((0,) * rank, mesh, spec).cuts for spec in (src, dst)]
    shape = tuple(
        math.lcm(*map(math.prod, parts)) * draw(st.sampled_from([1, 2, 0]))
        if even
        else draw(st.integers(0, 9))
        for parts in zip(*cuts, strict=True)
    )
    first, second = (
        Layout(shape, mesh, spec, draw(_chunkings(shape, parts, chunking)))
        for spec, parts in zip((src, dst), cuts, strict=True)
    )
    return first, second


def every_spec(mesh: Mesh, ndim: int, *, partial: bool = True) -> Iterator[Spec]:
    """All specs of whole axes, without splits, of tensors with `ndim` dims on `mesh`.

    Args:
        mesh: Only its number of axes matters.
        ndim: Number of dims of the tensor.
        partial: Whether to include specs with partial sums.
    """

    def place(axis: int, dims: Dims, partials: tuple[Partial, ...]) -> Iterator[Spec]:
        if axis == mesh.ndim:
            yield Spec(dims, partials)
            return
        yield from place(axis + 1, dims, partials)
        if partial:
            yield from place(axis + 1, dims, (*partials, Partial(axis)))
        for dim, axes in enumerate(dims):
            for at in range(len(axes) + 1):
                longer = (*axes[:at], axis, *axes[at:])
                yield from place(axis + 1, (*dims[:dim], longer, *dims[dim + 1 :]), partials)

    yield from place(0, ((),) * ndim, ())


@st.composite
def _parts(draw: st.DrawFn, mesh: Mesh, axis: int) -> list[Axis]:
    """An axis, or the parts into which it is split, major to minor."""
    length, pre = mesh.shape[axis], 1
    parts: list[Axis] = []
    while pre < length:
        left = length // pre
        size = draw(st.sampled_from([n for n in range(2, left + 1) if left % n == 0]))
        parts.append(SubAxis(axis, pre, size))
        pre *= size
    return parts if len(parts) > 1 else [axis]


@st.composite
def _chunkings(
    draw: st.DrawFn,
    shape: tuple[int, ...],
    cuts: tuple[tuple[int, ...], ...],
    rules: Sequence[ChunkingRule | Literal["sizes"]],
) -> tuple[Chunking, ...]:
    """One of `rules` for each dim; `cuts` are the numbers of parts into which it is cut."""
    chunkings: list[Chunking] = []
    for n, parts in zip(shape, cuts, strict=True):
        rule = draw(st.sampled_from(rules))
        if rule == "sizes":
            inner = math.prod(parts) - 1
            bounds = sorted(draw(st.lists(st.integers(0, n), min_size=inner, max_size=inner)))
            chunkings.append(tuple(b - a for a, b in itertools.pairwise([0, *bounds, n])))
        else:
            chunkings.append(rule)
    return tuple(chunkings)
