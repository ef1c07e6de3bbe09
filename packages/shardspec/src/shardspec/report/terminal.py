"""`draw`: draws a layout for a terminal, as a grid of blocks with the devices that hold them."""

import textwrap
from collections.abc import Iterator, Mapping
from itertools import islice, product

from shardspec.amounts import count_text
from shardspec.layout.layout import Layout
from shardspec.report.block_owners import Blocks
from shardspec.report.crop import drawn_dims, drawn_pieces
from shardspec.report.phrases import axis_text, devices_text, holders_text, layout_text, span_text

_BLOCKS = 8
"""Most blocks in a row or a column; of more, the first ones and the last are drawn."""

_PANELS = 4
"""Most grids that are drawn of a tensor with more than two cut dims."""

_LABEL = 20
"""Approximate limit on the characters in a block."""

_ASCII = str.maketrans("┌┬┐├┼┤└┴┘─│…⋮", "+++++++++-|~:")


def draw(layout: Layout, *, width: int = 80, ascii: bool = False, title: bool = True) -> str:
    """Text that draws the tensor `A` as a grid of blocks, each with the devices that hold it.

    Rows and columns are the last two dims that are cut; there is a grid for each piece of further
    cut dims. Of many blocks, the first ones and the last are drawn. A block is labelled `0,1` if
    these devices hold copies of it, and `0+2` if their results add up to it.

    Args:
        layout: May be large: nothing is computed per element, and little per device.
        width: Columns of the terminal.
        ascii: Draw with `+`, `-` and `|`.
        title: Begin with a line for the layout, and lines for what the grids do not show.

    Examples:
        >>> from shardspec import Mesh, Spec
        >>> print(draw(Layout((8, 5), Mesh((2, 2), ("x", "y")), Spec.parse("S0S1"))))
        A (8, 5) as S0S1 on 4 devices (x=2, y=2)
        <BLANKLINE>
              0:3   3:5
            ┌─────┬─────┐
        0:4 │  0  │  1  │
            ├─────┼─────┤
        4:8 │  2  │  3  │
            └─────┴─────┘
    """
    blocks = Blocks(layout)
    head = [layout_text(layout), *_notes(blocks)] if title else []
    lines = [part for line in head for part in textwrap.wrap(line, width)]
    if 0 in layout.shape:
        lines += ["", f"nothing to draw: dim {layout.shape.index(0)} has no elements"]
    else:
        lines += _panels(blocks, width)
    text = "\n".join(line.rstrip() for line in lines).lstrip("\n")
    return text.translate(_ASCII) if ascii else text


def _notes(blocks: Blocks) -> Iterator[str]:
    """Lines about what the grids do not show."""
    layout = blocks.layout
    for p in layout.spec.partial:
        yield f"partial: {p.kind} along {axis_text(layout.mesh, p.axis)}"
    if blocks.is_empty.any() and 0 not in layout.shape:
        idle = sorted(blocks.devices(blocks.is_empty).reshape(-1).tolist())
        yield f"nothing on {count_text(len(idle), 'device')}: {devices_text(idle)}"


def _panels(blocks: Blocks, width: int) -> Iterator[str]:
    """A grid for each choice of pieces of the other cut dims; of many, for the first choices."""
    grid, panels = drawn_dims([blocks])
    if len(blocks.cuts) > 2:
        yield ""
        yield f"rows: dim {grid[0]}, columns: dim {grid[1]}"
    choices = product(*(list(islice(blocks.cuts[d].pieces(), _PANELS + 1)) for d in panels))
    for count, choice in enumerate(choices):
        yield ""
        if count == _PANELS:
            yield "… and more"
            return
        at = dict(zip(panels, choice, strict=True))
        if panels:
            dims = [
                span_text(cuts.piece(at[d])) if d in at else ":"
                for d, cuts in enumerate(blocks.cuts)
            ]
            yield f"A[{', '.join(dims)}]"
        yield from _grid(blocks, grid, at, width)


def _grid(blocks: Blocks, dims: tuple[int, ...], at: Mapping[int, int], width: int) -> list[str]:
    """The lines of one grid, with as many blocks as fit the width."""
    lines: list[str] = []
    for limit in range(_BLOCKS, 1, -1):
        lines = _boxes(_table(blocks, dims, at, limit))
        if len(lines[1]) <= width:
            return lines
    room = max(1, width // 4 - 4)  # three blocks and the names of the rows
    return _boxes([[_clipped(text, room) for text in row] for row in _table(blocks, dims, at, 2)])


def _table(
    blocks: Blocks, dims: tuple[int, ...], at: Mapping[int, int], limit: int
) -> list[list[str]]:
    """The texts of a grid: the slices of columns, then for each row its slice and its blocks."""
    pieces = [drawn_pieces(blocks.cuts[dim], limit) for dim in dims]
    spans = [
        ["…" if piece is None else span_text(blocks.cuts[dim].piece(piece)) for piece in of_dim]
        for dim, of_dim in zip(dims, pieces, strict=True)
    ]
    lefts, tops = [[""], [""], *spans][-2:]
    missing: list[int | None] = [0]
    rows, columns = [missing, missing, *pieces][-2:]
    table = [["", *tops]]
    for left, row in zip(lefts, rows, strict=True):
        labels = []
        for column in columns:
            if row is None or column is None:
                labels.append("⋮" if row is None else "…")
                continue
            chosen = {**at, **dict(zip(dims, (row, column)[2 - len(dims) :], strict=True))}
            parts = [cuts.part(chosen.get(dim, 0)) for dim, cuts in enumerate(blocks.cuts)]
            kinds = [p.kind for p in blocks.layout.spec.partial]
            labels.append(holders_text(blocks.devices(blocks.number(parts)), kinds, _LABEL))
        table.append([left, *labels])
    return table


def _boxes(table: list[list[str]]) -> list[str]:
    """The lines of a table, with borders around all cells except the first row and column."""
    left, *widths = (max(map(len, column)) for column in zip(*table, strict=True))
    margin = " " * (left + 1 if left else 0)

    def rule(ends: str) -> str:
        return margin + ends[0] + ends[1].join("─" * (width + 2) for width in widths) + ends[2]

    def line(row: list[str], edge: str) -> str:
        cells = [f" {text:^{width}} " for text, width in zip(row[1:], widths, strict=True)]
        return f"{row[0]:>{left}}{margin[left:]}{edge}{edge.join(cells)}{edge}"

    lines = [line(table[0], " "), rule("┌┬┐")]
    for row in table[1:]:
        lines += [line(row, "│"), rule("├┼┤")]
    lines[-1] = rule("└┴┘")
    return lines if any(table[0]) else lines[1:]


def _clipped(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + "…"
