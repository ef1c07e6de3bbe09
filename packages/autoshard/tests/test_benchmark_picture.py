from pathlib import Path

import pytest
from autoshard.cli.benchmark import BenchmarkRow, Instance
from autoshard.cli.benchmark_picture import draw, figure_of
from autoshard.problem.solution import Incumbent, Solution


def rows(n):
    """The results of one method on `n` instances."""
    trace = (Incumbent(0.1, 4.0, 1.0), Incumbent(0.5, 3.0, 3.0))
    solution = Solution((0,), 3.0, 3.0, "auto", 0.5, trace)
    return [
        BenchmarkRow(Instance(Path(f"case-{i}.json"), 1.0), "auto", 0, solution) for i in range(n)
    ]


@pytest.mark.parametrize("n", [1, 3, 4, 5, 6, 8])
def test_each_instance_has_a_panel_and_no_other_panel_is_drawn(n):
    panels = figure_of(rows(n)).axes
    assert [panel.axison for panel in panels] == [i < n for i in range(len(panels))]
    assert [panel.get_title() for panel in panels[:n]] == [str(i) for i in range(n)]


@pytest.mark.parametrize(("suffix", "begin"), [(".PNG", b"\x89PNG"), (".SVG", b"<?xml")])
def test_the_suffix_may_be_in_capitals(tmp_path, suffix, begin):
    path = tmp_path / f"picture{suffix}"
    draw(rows(1), path)
    assert path.read_bytes().startswith(begin)
    assert b"Date" not in path.read_bytes()
