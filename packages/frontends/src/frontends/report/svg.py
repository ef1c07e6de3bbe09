"""Shapes of SVG as text, for the charts of a plan's page.

A picture is 1000 units wide and scales with the page. All text is escaped. A shape may have a
title, which browsers show when the pointer is over it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

WIDTH = 1000.0

_NOT_XML = {n: "\ufffd" for n in (*range(32), 0x7F, 0xFFFE, 0xFFFF) if chr(n) not in "\t\n\r"} | {
    n: "\ufffd" for n in range(0xD800, 0xE000)
}


def safe(text: str) -> str:
    """Text that is valid in XML: special characters are escaped, forbidden ones replaced."""
    return escape(text.translate(_NOT_XML), quote=True)


def svg(height: float, label: str, shapes: Iterable[str]) -> str:
    """A picture; screen readers read the `label`."""
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {_number(height)}" role="img" aria-label="{safe(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(shapes)}</svg>'
    )


def rect(
    x: float, y: float, width: float, height: float, fill: str, *, title: str = "", stroke: str = ""
) -> str:
    """A rectangle from its upper left corner."""
    line = f' stroke="{stroke}"' if stroke else ""
    box = f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
    return f'<rect {box} fill="{fill}"{line}>{_title(title)}</rect>'


def line(x0: float, y0: float, x1: float, y1: float, stroke: str, *, dashed: bool = False) -> str:
    """A straight line."""
    ends = f'x1="{_number(x0)}" y1="{_number(y0)}" x2="{_number(x1)}" y2="{_number(y1)}"'
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<line {ends} stroke="{stroke}"{dashes}/>'


def area(points: Sequence[tuple[float, float]], fill: str, *, title: str = "") -> str:
    """A filled polygon."""
    text = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
    return f'<polygon points="{text}" fill="{fill}">{_title(title)}</polygon>'


def text(x: float, y: float, words: str, *, anchor: str = "start", size: float = 12.0) -> str:
    """Words on a baseline; `anchor` is start, middle or end."""
    place = f'x="{_number(x)}" y="{_number(y)}" font-size="{_number(size)}"'
    return f'<text {place} text-anchor="{anchor}">{safe(words)}</text>'


def _title(words: str) -> str:
    return f"<title>{safe(words)}</title>" if words else ""


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
