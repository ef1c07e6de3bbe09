from pathlib import Path

import pytest
from shardspec.report.figure import new_figure, save_figure, wrong_name


@pytest.mark.parametrize("name", ["a.png", "a.SVG", Path("b/a.PNG")])
def test_a_picture_is_png_or_svg(name):
    assert wrong_name(name) is None


@pytest.mark.parametrize("name", ["a.pdf", "png", Path("a"), 3, None, b"a.png"])
def test_anything_else_is_refused(name):
    assert wrong_name(name).startswith("a picture's file name ends in .png or .svg; got ")


@pytest.mark.parametrize("suffix", [".png", ".svg", ".PNG", ".SVG"])
def test_the_same_figure_is_the_same_file_without_a_date(tmp_path, suffix):
    for name in ("first", "second"):
        figure = new_figure(2.0, 1.0)
        figure.subplots().plot([1, 2], label="line")
        save_figure(figure, tmp_path / f"{name}{suffix}", "shardspec", dpi=50)
    first, second = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("first", "second"))
    assert first == second
    assert b"Date" not in first
