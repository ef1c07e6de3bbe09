"""`Sheet`: the figure that pictures are drawn on, in inches; `Picture`: the result, to be saved."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardspec.base.chunking import Run
from shardspec.base.partial import Reduction
from shardspec.errors import MissingExtraError, PictureError
from shardspec.layout.layout import Layout
from shardspec.report.crop import Box, Frame
from shardspec.report.figure import wrong_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HATCHES: dict[Reduction, str] = {
    "sum": "////",
    "avg": "\\\\\\\\",
    "max": "++",
    "min": "oo",
    "product": "xx",
}
_ALL = 128
"""Most devices that are all drawn; of more, only `_ROWS` rows and columns are."""
_ROWS = 8
"""Most rows and columns of devices if not all of them are drawn."""
_SMALLEST = 0.04
"""Least width and height, in inches, with which a part of a tensor is drawn."""
_COLOURS = ("#7cc4ee", "#f0b340", "#6fcfae", "#f3e76e", "#d99bbd", "#8fa8e0", "#ef9a73", "#c4c4c4")
"""After Okabe and Ito, so that the colour-blind can tell them apart; light, for black text."""

Size = tuple[float, float]
Part = tuple[Sequence[Iterable[Run]], str]
"""A block of the tensor that a device holds, as intervals along each dim, and its colour."""
Parts = Callable[[int], Iterable[Part]]
"""`parts(device)`: the blocks that a device holds."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure that can be saved; notebooks show it by themselves.

    Examples:
        >>> from shardspec import Layout, Mesh, Spec, picture
        >>> drawn = picture(Layout((8, 4), Mesh((2,), ("x",)), Spec.parse("S0R")))
        >>> drawn.save("out.svg")                                       # doctest: +SKIP
    """

    figure: Figure
    """The matplotlib figure; it needs no display and belongs to no window."""

    def save(self, path: str | PathLike[str]) -> None:
        """Writes a PNG or SVG file; the same picture gives the same file, byte for byte.

        Args:
            path: The file; its suffix selects the format.

        Raises:
            PictureError: a suffix other than .png and .svg.
            OSError: the file cannot be written.
        """
        if problem := wrong_name(path):
            raise PictureError(problem)
        self._write(path, Path(path).suffix.lower()[1:])

    def _repr_svg_(self) -> str:
        text = io.StringIO()
        self._write(text, "svg")
        return text.getvalue()

    def _write(self, target: Any, kind: str) -> None:
        from matplotlib import rc_context

        # Without a salt the ids in an SVG are random. Text stays text, which makes files small.
        with rc_context({"svg.hashsalt": "shardspec", "svg.fonttype": "none"}):
            metadata = {"Date": None} if kind == "svg" else None
            self.figure.savefig(target, format=kind, dpi=150, metadata=metadata)


class Sheet:
    """Draws in inches from the top left corner, on a figure that grows with its content."""

    def __init__(self) -> None:
        """Starts with an empty figure.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError as error:
            raise MissingExtraError(
                "pictures need matplotlib (extra `plot`); install it with: pip install matplotlib"
            ) from error
        self.figure = Figure()
        FigureCanvasAgg(self.figure)  # measures text without a display
        self.axes: Axes = self.figure.add_axes((0.0, 0.0, 1.0, 1.0))
        self.width = self.height = 0.0

    def picture(self, margin: float) -> Picture:
        """The picture of everything drawn so far, with a margin at the right and the bottom."""
        size = (self.width + margin, self.height + margin)
        self.axes.set(xlim=(0.0, size[0]), ylim=(size[1], 0.0))
        self.axes.set_axis_off()
        self.figure.set_size_inches(*size)
        return Picture(self.figure)

    def box(self, box: Box, **style: Any) -> None:
        """Draws a rectangle."""
        from matplotlib.patches import Rectangle

        left, top, width, height = box
        self._grow(left + width, top + height)
        self.axes.add_patch(Rectangle((left, top), width, height, **{"linewidth": 0.6, **style}))

    def block(self, box: Box, colour: str, partial: Sequence[Reduction] = (), **style: Any) -> None:
        """Draws a part of a tensor, hatched if it holds partial results."""
        hatch = _HATCHES[partial[-1]] if partial else None
        self.box(box, **{"facecolor": colour, "edgecolor": "white", "hatch": hatch, **style})

    def text(self, x: float, y: float, text: str, size: float = 9.0, **style: Any) -> None:
        """Writes a line of text that starts at `x` and is centred vertically at `y`."""
        self.axes.text(x, y, text, fontsize=size, **{"va": "center", "ha": "left", **style})
        if style.get("ha", "left") == "left":
            self._grow(x + text_width(text, size), y)

    def label(self, box: Box, text: str, **style: Any) -> None:
        """Writes a line of text into a box, as large as fits; nothing if it would be unreadable."""
        left, top, width, height = box
        size = min(10.0, width / text_width(f"{text} ", 1), 72 * height * 0.7)
        if size > 3:
            style = {"ha": "center", **style}
            self.text(left + width / 2, top + height / 2, text, size, **style)

    def arrow(self, start: Size, stop: Size) -> None:
        """Draws an arrow."""
        style = {"arrowstyle": "-|>", "color": "0.35", "linewidth": 1.4}
        self.axes.annotate("", stop, start, arrowprops=style)

    def _grow(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)


@dataclass(frozen=True, slots=True)
class DeviceGrid:
    """The devices of a mesh in rows and columns, each a small picture of the tensor."""

    layout: Layout
    """Only its shape and mesh matter."""
    frame: Frame
    """Where the elements of the tensor lie in a device's picture."""
    columns: int
    """Devices in a row."""
    tensor: Size
    """Width and height of a device's picture."""

    @classmethod
    def of(cls, layout: Layout, frame: Frame, width: float) -> DeviceGrid:
        """A grid at most `width` wide; the last axis fills one row, or several if it is long."""
        mesh = layout.mesh
        columns = mesh.shape[-1] if mesh.ndim else 1
        if mesh.size <= _ALL:
            while columns % 2 == 0 and columns > (_ROWS if columns == mesh.size else 2 * _ROWS):
                columns //= 2
        each = min(1.1, width / len(_shown(columns, mesh.size)) / 1.15)
        return cls(layout, frame, columns, tensor_size(layout, frame, each))

    @property
    def places(self) -> list[tuple[int, int, int | None]]:
        """Row, column and device id of each picture; None in the place of devices left out."""
        ids = self.layout.mesh.device_ids
        rows = _shown(len(ids) // self.columns, len(ids))
        columns = _shown(self.columns, len(ids))
        return [
            (y, x, None if row is None or column is None else ids[row * self.columns + column])
            for (y, row), (x, column) in product(enumerate(rows), enumerate(columns))
        ]

    @property
    def pitch(self) -> Size:
        """Distance from one device to the next, with room for the number above each."""
        width, height = self.tensor
        return width * 1.15, height + 0.2

    @property
    def size(self) -> Size:
        """Width and height of the grid."""
        last_row, last_column, _ = self.places[-1]
        return (last_column + 1) * self.pitch[0], (last_row + 1) * self.pitch[1]

    def draw(
        self,
        sheet: Sheet,
        corner: Size,
        partial: Sequence[Reduction],
        parts: Parts,
    ) -> None:
        """Draws what each device holds.

        Args:
            sheet: The figure to draw on.
            corner: Left and top of the grid.
            partial: The kinds of partial results.
            parts: What a device holds.
        """
        whole = [[(0, n)] for n in self.layout.shape]
        width, height = self.tensor
        for row, column, device in self.places:
            left = corner[0] + column * self.pitch[0]
            box = (left, corner[1] + row * self.pitch[1] + 0.16, width, height)
            if device is None:
                sheet.label(box, "…")
                continue
            sheet.text(left, box[1] - 0.08, str(device), min(8.0, 24 * width), color="0.3")
            panels = [inside(box, part) for part in self.frame.boxes(whole)]
            if 0 in self.layout.shape:
                panels = [box]
            for panel in panels:
                sheet.box(panel, facecolor="0.95", edgecolor="none")
            for runs, colour in parts(device):
                for part in self.frame.boxes(runs):
                    sheet.block(_visible(inside(box, part), box), colour, partial, linewidth=0.3)
            for panel in panels:
                sheet.box(panel, fill=False, edgecolor="0.5")


def palette(count: int) -> list[str]:
    """`count` colours that can be told apart; of many, neighbours are similar."""
    if count <= len(_COLOURS):
        return list(_COLOURS[:count])
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    scale = colormaps["viridis"]
    colours = [scale(i / (count - 1)) for i in range(count)]
    light = [[0.45 + 0.55 * share for share in colour[:3]] for colour in colours]
    return [to_hex((red, green, blue)) for red, green, blue in light]


def tensor_size(layout: Layout, frame: Frame, width: float) -> Size:
    """Width and height of a tensor's picture: in proportion to its shape, within limits."""
    if len(frame.dims) < 2:
        return width, 0.2 * width if frame.dims else 0.4 * width
    rows, columns = (layout.shape[dim] for dim in frame.dims)
    panel = width / max(1, len(frame.panels))
    return width, panel * (min(1.3, max(0.4, rows / columns)) if rows and columns else 0.6)


def inside(box: Box, part: Box) -> Box:
    """The box in inches of a part of `box`, where `part` is in shares of `box`."""
    left, top, width, height = box
    return left + part[0] * width, top + part[1] * height, part[2] * width, part[3] * height


def text_width(text: str, size: float) -> float:
    """Approximate width of a line of text, in inches."""
    return len(text) * 0.6 * size / 72


def _visible(part: Box, box: Box) -> Box:
    """`part` of a box, enlarged within the box if it is too small to be seen."""
    left, top, width, height = part
    width, height = max(width, _SMALLEST), max(height, _SMALLEST)
    return min(left, box[0] + box[2] - width), min(top, box[1] + box[3] - height), width, height


def _shown(count: int, devices: int) -> list[int | None]:
    """The rows or columns that are drawn: all; of many devices, the first ones, None, the last."""
    if devices <= _ALL or count <= _ROWS:
        return list(range(count))
    return [*range(_ROWS - 2), None, count - 1]
