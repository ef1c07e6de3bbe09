import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Spec, draw
from shardspec.testing import EVERY_RULE, layouts, meshes

MESH = Mesh((2, 2), ("x", "y"))
POD = Mesh((64, 64), ("data", "model"))
SMALL = meshes(max_length=2, max_ndim=2)


def of(shape, spec, mesh=MESH, chunking="ceil"):
    return Layout(shape, mesh, Spec.parse(spec), chunking)


def cells(drawing):
    """The text of each block of a grid, by its rows and columns, as they are written."""
    lines = drawing.splitlines()
    top = next(i for i, line in enumerate(lines) if "┌" in line)
    columns = lines[top - 1].split() or [""]
    for line in lines[top:]:
        if "│" in line:
            row, *texts, _ = line.split("│")
            yield from ((row.strip(), *pair) for pair in zip(columns, texts, strict=True))


def interval(text, n):
    return tuple(map(int, text.split(":"))) if text else (0, n)


@given(
    SMALL.flatmap(lambda mesh: layouts(mesh=mesh, max_rank=2, strided=True, chunking=EVERY_RULE))
)
def test_every_block_names_the_devices_that_hold_its_elements(layout):
    if 0 in layout.shape:
        assert "nothing to draw: dim" in draw(layout)
        return
    shape = (1,) * (2 - len(layout.shape)) + layout.shape
    runs = {
        device: [((0, 1),)] * (2 - len(layout.shape)) + list(layout.runs(device))
        for device in layout.mesh.device_ids
    }
    covered = np.zeros(shape, int)
    drawing = draw(layout)
    for row, column, text in cells(drawing):
        if "…" in (row, column):
            return  # too many blocks for the drawing; the others are checked
        (top, bottom), (left, right) = interval(row, shape[0]), interval(column, shape[1])
        covered[top:bottom, left:right] += 1
        holders = {
            device
            for device, (rows, columns) in runs.items()
            if any(a <= top and bottom <= b for a, b in rows)
            and any(a <= left and right <= b for a, b in columns)
        }
        named = set()
        for part in re.findall(r"\d+-\d+|\d+", text):
            first, last = map(int, (part.split("-") * 2)[:2])
            named |= set(range(first, last + 1))
        assert named == holders, drawing
    assert (covered == 1).all(), drawing


@given(
    layouts(max_rank=4, sub_axes=True, strided=True, mixed_kinds=True, chunking=EVERY_RULE),
    st.sampled_from([60, 80, 120]),
)
def test_no_line_is_wider_than_the_terminal(layout, width):
    assert max(map(len, draw(layout, width=width).splitlines())) <= width


def test_the_widest_numbers_and_labels_fit():
    sizes = ((1 << 62) + 1, (1 << 62) - 1)
    for spec in ("S0S1", "S01R+P2", "RR+Pmax0+Pproduct1+Pavg2"):
        layout = of(sizes, spec, Mesh((64, 64, 64), ("data", "model", "pipe")))
        assert max(map(len, draw(layout).splitlines())) <= 80


@given(layouts(max_rank=3, strided=True))
def test_ascii_has_the_same_lines_without_box_characters(layout):
    drawing, plain = draw(layout), draw(layout, ascii=True)
    assert plain.isascii()
    assert list(map(len, plain.splitlines())) == list(map(len, drawing.splitlines()))


def test_without_a_title_only_the_grids_are_drawn():
    assert draw(of((5,), "S0+P1"), title=False).splitlines()[0].split() == ["0:3", "3:5"]


CASES = {
    "tiles": of((8, 5), "S0S1"),
    "order of axes": of((8, 4), "S10R"),
    "replicated": of((8, 4), "RR"),
    "vector": of((5,), "S01"),
    "scalar": of((), "()+P0+Pmax1"),
    "no elements": of((3, 0), "S0R"),
    "sum": of((8, 4), "RS1+P0"),
    "sum of copies": of((8,), "S0+P1", Mesh((2, 2, 2), ("x", "y", "z"))),
    "strided": of((16, 3), "S[2]0R"),
    "three cut dims": of((4, 8, 4, 4), "S0RS1S2", Mesh((2, 2, 2), ("x", "y", "z"))),
    "many panels": of((8, 2, 2), "S0S1S2", Mesh((8, 2, 2), ("x", "y", "z"))),
    "four dims, one cut": of((4, 8, 4, 4), "RS0RR"),
    "huge": of((1 << 40, 1 << 40), "S0S1", POD),
    "huge and uneven": of(((1 << 40) + 3, (1 << 40) + 1), "S0S1", POD),
    "huge and partial": of((1 << 40, 1 << 40), "S1R+P0", POD),
    "huge and strided": of((1 << 40,), "S[1073741824]0", Mesh((4,), ("x",))),
}


def test_drawings(check_golden):
    check_golden("terminal.txt", "\n\n\n".join(map(draw, CASES.values())))
