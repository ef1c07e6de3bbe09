import re
import sys

import pytest
from hypothesis import given, settings
from shardspec import (
    Layout,
    Mesh,
    MissingExtraError,
    PictureError,
    Spec,
    picture,
    reshard,
)
from shardspec.report.canvas import palette
from shardspec.testing import EVERY_RULE, layout_pairs, layouts

MESH = Mesh((2, 2), ("x", "y"))


def of(shape, spec, mesh=MESH, chunking="ceil"):
    return Layout(shape, mesh, Spec.parse(spec), chunking)


def words(drawn):
    """The texts of an SVG, in order."""
    svg = drawn._repr_svg_()
    return [text.strip() for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]


def boxes(drawn):
    """Rectangles as (left, top, width, height), in inches."""
    return [(*patch.get_xy(), patch.get_width(), patch.get_height()) for patch in patches(drawn)]


def patches(drawn):
    return drawn.figure.axes[0].patches


def test_blocks_are_labelled_with_their_devices_and_borders():
    texts = words(picture(of((8, 5), "S0S1")))
    assert texts[0] == "A (8, 5) as S0S1 on 4 devices (x=2, y=2)"
    assert {"0", "1", "2", "3", "4", "5", "8"} <= set(texts)
    assert {"dim 0, along x", "dim 1, along y"} <= set(texts)


def test_a_device_is_drawn_with_its_share_of_the_tensor():
    drawn = picture(of((8, 4), "S01R"))
    outlines = [
        box for box, p in zip(boxes(drawn), patches(drawn), strict=True) if not p.get_fill()
    ]
    assert len(outlines) == 4
    for left, top, width, height in outlines:
        inside = [
            box
            for box in boxes(drawn)
            if left <= box[0] < left + width and top - 1e-9 <= box[1] < top + height
        ]
        areas = sorted(box[2] * box[3] / (width * height) for box in inside)
        assert areas == pytest.approx([0.25, 1.0, 1.0])  # its part, the background, the outline


def test_copies_have_one_colour_and_other_blocks_others():
    drawn = picture(of((8, 4), "S0R"))
    colours = [p.get_facecolor() for p in patches(drawn) if p.get_edgecolor()[:3] == (1, 1, 1)]
    tensor, devices = colours[:2], colours[2:]
    assert devices == [tensor[0], tensor[0], tensor[1], tensor[1]]
    assert tensor[0] != tensor[1]


@pytest.mark.parametrize("kind", ["", "max", "min", "product", "avg"])
def test_partial_results_are_hatched_and_explained(kind):
    hatched = picture(of((8, 4), f"RS1+P{kind}0"))
    hatches = {p.get_hatch() for p in patches(hatched) if p.get_edgecolor()[:3] == (1, 1, 1)}
    assert len(hatches) == 1
    assert None not in hatches
    assert any(text.startswith("partial: 2 ") for text in words(hatched))
    assert not any(p.get_hatch() for p in patches(picture(of((8, 4), "RS1"))))


def test_every_kind_has_its_own_hatch():
    kinds = ("", "max", "min", "product", "avg")
    drawn = [picture(of((4,), f"R+P{kind}0")) for kind in kinds]
    assert len({patches(each)[0].get_hatch() for each in drawn}) == len(kinds)


def test_64_devices_are_all_drawn_and_4096_are_not():
    mesh = Mesh((8, 8), ("data", "model"))
    texts = words(picture(of((64, 64), "S0S1", mesh)))
    assert all(texts.count(str(device)) >= 2 for device in range(64))
    pod = Mesh((64, 64), ("data", "model"))
    texts = words(picture(of((1 << 40, 1 << 40), "S0S1", pod)))
    assert {"0", "63", "64", "4095", "…", "⋮", "1024Gi"} <= set(texts)
    assert "100" not in texts


def test_a_step_is_drawn_with_what_comes_from_whom():
    drawn = picture(of((8, 8), "S0R"), of((8, 8), "RS0"))
    assert "1. all-to-all along x, dim 0 to dim 1: S0R -> RS0" in [
        text.replace("&gt;", ">") for text in words(drawn)
    ]
    colours = [p.get_facecolor() for p in patches(drawn) if p.get_edgecolor()[:3] == (1, 1, 1)]
    before, after = colours[:4], colours[4:]
    first, second = palette(2)
    from matplotlib.colors import to_rgba

    assert before == [to_rgba(first)] * 2 + [to_rgba(second)] * 2  # groups 0,2 and 1,3
    assert sorted(after) == sorted([to_rgba(first), to_rgba(second)] * 4)  # half from each


def test_a_plan_is_drawn_as_its_layouts():
    pair = of((8, 8), "RS1+P0"), of((8, 8), "S01R")
    assert words(picture(*pair)) == words(picture(reshard(*pair)))


def test_nothing_to_do_is_said():
    pair = of((8, 8), "RR"), of((8, 8), "RR")
    assert "nothing to do: every device has what it needs" in words(picture(*pair))


@settings(max_examples=15)
@given(layouts(max_rank=4, sub_axes=True, strided=True, mixed_kinds=True, chunking=EVERY_RULE))
def test_everything_drawn_of_a_layout_is_on_the_sheet(layout):
    check_on_sheet(picture(layout))


@settings(max_examples=15)
@given(layout_pairs())
def test_everything_drawn_of_a_plan_is_on_the_sheet(pair):
    check_on_sheet(picture(*pair))


def check_on_sheet(drawn):
    width, height = drawn.figure.get_size_inches()
    for left, top, across, down in boxes(drawn):
        assert -1e-6 <= left <= left + across <= width
        assert -1e-6 <= top <= top + down <= height


def test_texts_are_on_the_sheet():
    drawn = picture(of((1 << 40, 1 << 40), "S0S1", Mesh((64, 64), ("data", "model"))))
    width, height = drawn.figure.get_size_inches() * drawn.figure.dpi
    for text in drawn.figure.axes[0].texts:
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= width
        assert box.y1 <= height


def test_files_are_png_or_svg_and_always_the_same(tmp_path):
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".SVG", b"<?xml")):
        for name in ("a", "b"):
            picture(of((8, 4), "RS1+P0")).save(tmp_path / f"{name}{suffix}")
        first, second = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("a", "b"))
        assert first.startswith(start)
        assert first == second


def test_other_files_are_refused(tmp_path):
    with pytest.raises(PictureError, match=r"ends in \.png or \.svg; got '.*who\.pdf'"):
        picture(of((8, 4), "S0R")).save(tmp_path / "who.pdf")


def test_missing_matplotlib_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match="install it with: pip install matplotlib"):
        picture(of((8, 4), "S0R"))


def test_a_palette_has_distinct_colours():
    for count in (1, 8, 9, 64):
        assert len(set(palette(count))) == count
