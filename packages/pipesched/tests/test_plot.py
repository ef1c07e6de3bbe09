import sys
from pathlib import Path

import pytest
from pipesched import ArgumentError, Costs, MissingExtraError, eager_1f1b, plot, simulate

TIMELINE = simulate(eager_1f1b(3, 4), Costs(1.0, 2.0, transfer_s=0.5))


def test_svg_shows_every_rank_and_kind(tmp_path: Path) -> None:
    plot(TIMELINE, tmp_path / "timeline.svg")
    text = (tmp_path / "timeline.svg").read_text(encoding="utf-8")
    words = ["rank 0", "rank 1", "rank 2", "forward", "backward", "eager-1f1b: 3 stages"]
    assert [word for word in words if word not in text] == []


def test_png_is_a_png(tmp_path: Path) -> None:
    plot(TIMELINE, str(tmp_path / "timeline.png"))
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_timeline_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        plot(TIMELINE, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"ends in \.png or \.svg; got path='.*timeline\.txt'"):
        plot(TIMELINE, tmp_path / "timeline.txt")


def test_missing_matplotlib_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'meshwright-pipesched\[plot\]'"):
        plot(TIMELINE, tmp_path / "timeline.svg")
