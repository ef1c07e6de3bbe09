import sys
from collections.abc import Callable
from os import PathLike
from pathlib import Path

import pytest
from hypothesis import given, settings
from pipesched import (
    ArgumentError,
    Costs,
    MissingExtraError,
    Schedule,
    Timeline,
    eager_1f1b,
    make,
    one_f_one_b,
    plot,
    plot_memory,
    simulate,
)
from pipesched.testing import steps

Plot = Callable[[Timeline | list[Timeline], str | PathLike[str]], None]

COSTS = Costs(1.0, 2.0, transfer_s=0.5, reduce_s=1.0, parameter_bytes=3, message_bytes=1)
TIMELINE = simulate(eager_1f1b(3, 4), COSTS)
SPLIT = simulate(make("zb-v", 4, 5), COSTS)
both = pytest.mark.parametrize("draw", [plot, plot_memory], ids=["timeline", "memory"])


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_svg_shows_every_rank_and_kind_of_every_timeline(tmp_path: Path) -> None:
    plot([TIMELINE, SPLIT], tmp_path / "timeline.svg")
    words = ["rank 0", "rank 1", "rank 2", "forward", "backward", "eager-1f1b: 3 stages"]
    words += ["zb-v: 4 stages", "input gradient", "weight gradient"]
    assert [word for word in words if word not in text_of(tmp_path / "timeline.svg")] == []


def test_memory_shows_every_rank_and_what_is_held_against_the_cap(tmp_path: Path) -> None:
    plot_memory([TIMELINE, SPLIT], tmp_path / "memory.svg", cap_bytes=20.0)
    words = ["rank 0", "rank 2", "activations", "for weight gradients", "messages", "parameters"]
    words += ["cap", f"zb-v: at most {max(SPLIT.peak_bytes):.4g} bytes"]
    assert [word for word in words if word not in text_of(tmp_path / "memory.svg")] == []


def test_memory_names_only_what_is_held(tmp_path: Path) -> None:
    plot_memory(simulate(one_f_one_b(2, 2), Costs(1.0, 2.0)), tmp_path / "memory.svg")
    text = text_of(tmp_path / "memory.svg")
    assert "activations" in text
    assert [word for word in ("messages", "parameters", "cap") if f"<!-- {word}" in text] == []


@both
def test_png_is_a_png(draw: Plot, tmp_path: Path) -> None:
    draw(TIMELINE, str(tmp_path / "timeline.png"))
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


@both
def test_the_same_timeline_gives_the_same_file(draw: Plot, tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        draw(SPLIT, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@given(steps())
@settings(max_examples=max(1, settings().max_examples // 20))
def test_any_schedule_can_be_plotted(
    tmp_path_factory: pytest.TempPathFactory, schedule: Schedule
) -> None:
    folder = tmp_path_factory.mktemp("plots")
    for draw in (plot, plot_memory):
        draw(simulate(schedule, Costs(1.0, 2.0)), folder / "any.svg")


@both
def test_a_timeline_without_time_is_plotted(draw: Plot, tmp_path: Path) -> None:
    draw(simulate(one_f_one_b(2, 1), Costs(0.0, 0.0)), tmp_path / "none.svg")
    assert (tmp_path / "none.svg").exists()


@both
def test_other_suffixes_are_refused(draw: Plot, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"ends in \.png or \.svg; got path='.*timeline\.txt'"):
        draw(TIMELINE, tmp_path / "timeline.txt")


@both
def test_no_timeline_is_refused(draw: Plot, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="at least one timeline; got none"):
        draw([], tmp_path / "timeline.svg")


@both
def test_missing_matplotlib_names_the_extra(
    draw: Plot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'meshwright-pipesched\[plot\]'"):
        draw(TIMELINE, tmp_path / "timeline.svg")
