"""Chooses which dims and pieces of a tensor are drawn, and where each element lies."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise, product

import numpy as np

from shardspec.base.chunking import Run
from shardspec.report.block_owners import Blocks, Cuts

Box = tuple[float, float, float, float]
"""Left, top, width and height, as shares of the picture of a tensor."""

_PANELS = 4
"""Most panels of a tensor with more than two cut dims; of more, the first ones are drawn."""

_BLOCKS = 16
"""Most blocks in a row or a column of a picture; of more, half as many are drawn."""

_GAP = 0.1
"""Gap between two panels, as a share of a panel; gap for left-out pieces, as a share of all."""


def drawn_dims(blocks: Iterable[Blocks]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dims drawn as rows and columns (at most two), and the other dims that are cut.

    The last dims that are cut are drawn; if they are fewer than two, also the last other dims.

    Args:
        blocks: Blocks of one tensor under some layouts; a dim counts as cut if one layout cuts it.

    Examples:
        >>> from shardspec import Layout, Mesh, Spec
        >>> mesh = Mesh((2, 2, 2), ("x", "y", "z"))
        >>> drawn_dims([Blocks(Layout((2, 2, 2, 2), mesh, Spec.parse("S0RS1S2")))])
        ((2, 3), (0,))
    """
    by_dim = list(zip(*(of_layout.cuts for of_layout in blocks), strict=True))
    cut = [dim for dim, of_dim in enumerate(by_dim) if any(cuts.n_pieces > 1 for cuts in of_dim)]
    whole = [dim for dim in range(len(by_dim)) if dim not in cut]
    missing = max(0, 2 - len(cut))
    return tuple(sorted(cut[-2:] + whole[max(0, len(whole) - missing) :])), tuple(cut[:-2])


def drawn_pieces(cuts: Cuts, limit: int) -> list[int | None]:
    """The pieces of a dim that are drawn: all, or the first ones, None and the last.

    Examples:
        >>> drawn_pieces(Cuts(8, "ceil", (8,), (False,)), 4)
        [0, 1, 2, None, 7]
    """
    drawn: list[int | None] = list(islice(cuts.pieces(), limit + 1))
    if len(drawn) > limit:
        drawn[limit - 1 :] = [None, next(cuts.pieces(cuts.n - 1))]
    return drawn


@dataclass(frozen=True, slots=True)
class Scale:
    """Where the indices of one dim lie: in proportion, except that left-out pieces are squeezed.

    Examples:
        >>> scale = Scale.of([Cuts(8, "ceil", (2,), (False,))])
        >>> scale.at(4), scale.pieces
        (0.5, ((0, 4), (4, 8)))
    """

    knots: tuple[tuple[int, float], ...]
    """Rising indices and where they lie; indices between them are interpolated."""
    pieces: tuple[Run, ...] = ()
    """The pieces that are drawn."""
    left_out: Run | None = None
    """The interval between the last two drawn pieces, if pieces are left out."""

    @classmethod
    def of(cls, cuts: Sequence[Cuts]) -> "Scale":
        """The scale of a dim under one or more cuts; it has pieces only if there is one."""
        n = cuts[0].n
        even = ((0, 0.0), (max(n, 1), 1.0))
        if len(cuts) > 1:
            return cls(even)
        limit = _BLOCKS // 2
        numbers = drawn_pieces(cuts[0], _BLOCKS)
        if None in numbers:
            numbers = drawn_pieces(cuts[0], limit)
        pieces = tuple(cuts[0].piece(i) for i in numbers if i is not None)
        if None not in numbers:
            return cls(even, pieces)
        stop, start = pieces[-2][1], pieces[-1][0]
        share = (1 - _GAP) / limit
        return cls(
            ((0, 0.0), (stop, 1 - share - _GAP), (start, 1 - share), (n, 1.0)),
            pieces,
            (stop, start),
        )

    @property
    def borders(self) -> list[int]:
        """Where pieces start or stop."""
        return sorted({index for piece in self.pieces for index in piece})

    def at(self, index: int) -> float:
        """Position of the border before an index, from 0 to 1."""
        indices, positions = zip(*self.knots, strict=True)
        return float(np.interp(index, indices, positions))


@dataclass(frozen=True, slots=True)
class Frame:
    """Where the elements of a tensor lie in its picture: rows and columns, in panels side by side.

    Examples:
        >>> from shardspec import Layout, Mesh, Spec
        >>> layout = Layout((8, 4), Mesh((2,), ("x",)), Spec.parse("S0R"))
        >>> frame = Frame.of([Blocks(layout)])
        >>> list(frame.boxes(layout.runs(1)))
        [(0.0, 0.5, 1.0, 0.5)]
    """

    dims: tuple[int, ...]
    """The dims drawn as rows and columns; only columns if the tensor has one dim; none: scalar."""
    scales: tuple[Scale, ...]
    """The scale of each of `dims`."""
    panels: tuple[tuple[tuple[int, Run], ...], ...]
    """For each panel, the interval that it shows of each other dim that is cut."""

    @classmethod
    def of(cls, blocks: Sequence[Blocks]) -> "Frame":
        """The frame for a tensor under one or more layouts; it has pieces only if there is one."""
        dims, others = drawn_dims(blocks)
        scales = tuple(Scale.of([of.cuts[dim] for of in blocks]) for dim in dims)
        runs = [_common_runs([of.cuts[dim] for of in blocks]) for dim in others]
        panels = islice(product(*runs), _PANELS)
        return cls(dims, scales, tuple(tuple(zip(others, of, strict=True)) for of in panels))

    @property
    def panel_boxes(self) -> tuple[Box, ...]:
        """The box of each panel."""
        count = len(self.panels)
        share = 1 / (count + _GAP * (count - 1)) if count else 0.0
        return tuple((i * (1 + _GAP) * share, 0.0, share, 1.0) for i in range(count))

    def boxes(self, runs: Sequence[Iterable[Run]]) -> Iterator[Box]:
        """The boxes of the elements whose index along each dim is in one of its intervals."""
        held = [tuple(of_dim) for of_dim in runs]
        spans = [
            [(scale.at(start), scale.at(stop)) for start, stop in held[dim]]
            for dim, scale in zip(self.dims, self.scales, strict=True)
        ]
        rows, columns = [*[[(0.0, 1.0)]] * (2 - len(spans)), *spans]
        for (left, top, width, _), panel in zip(self.panel_boxes, self.panels, strict=True):
            if all(
                any(start <= run[0] and run[1] <= stop for start, stop in held[dim])
                for dim, run in panel
            ):
                for (upper, lower), (start, stop) in product(rows, columns):
                    yield left + start * width, top + upper, (stop - start) * width, lower - upper


def _common_runs(cuts: Sequence[Cuts]) -> list[Run]:
    """The first few intervals of a dim that none of `cuts` cuts further."""
    borders = {cuts[0].n}
    for of in cuts:
        borders |= {of.piece(i)[0] for i in islice(of.pieces(), _PANELS + 1)}
    return list(pairwise(sorted(borders)))[:_PANELS]
