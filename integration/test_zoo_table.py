"""The page of the zoo shows the kept results, and no others."""

import dataclasses
import math
from pathlib import Path

from zoo.cases import SMALL
from zoo.check import TOLERANCE
from zoo.measure import BASELINES, Row, keep, read
from zoo.report import MARKER, table, write

DOCS = Path(__file__).resolve().parents[1] / "docs"
ROW = Row(
    "gpt",
    27_840,
    "two hosts",
    ((2,), (1,), (1,)),
    "1f1b",
    2,
    "search",
    2e-3,
    3 * 2**20,
    dict(zip(BASELINES, (3e-3, None, 2e-3, 5e-3, 1.0), strict=True)),
    0.0,
    3.47e-6,
)


def test_a_row_is_read_as_it_was_kept(tmp_path):
    other = dataclasses.replace(ROW, name="gpt, flax linen", difference=1e-6)
    for row in (other, ROW):
        keep(row, tmp_path)
    assert list(read(tmp_path).items()) == [("gpt", ROW), ("gpt, flax linen", other)]
    keep(dataclasses.replace(ROW, step_s=1.0), tmp_path)
    assert read(tmp_path)["gpt"].step_s == 1.0


def test_a_line_compares_the_plan_with_the_baselines():
    head, _, line = table([ROW]).splitlines()
    cells = dict(zip(head.split(" | "), line.split(" | "), strict=True))
    assert cells["stages"] == "2 + 2 of 1"
    assert (cells["parameters"], cells["step"], cells["memory"]) == (
        "27.8 k",
        "2 ms",
        "3 MiB",
    )
    columns = ("data parallel", "ZeRO-2", "ZeRO-3", "Megatron", "equal layers")
    assert [cells[column] for column in columns] == ["1.50", "–", "1.00", "2.50", "500.00"]
    assert cells["difference |"] == "3.5e-06 |"


def test_writing_keeps_the_text_before_the_marker(tmp_path):
    page, picture = tmp_path / "zoo.md", tmp_path / "zoo.svg"
    page.write_text(f"words\n\n{MARKER}\nold\n", encoding="utf-8")
    write(page, picture, {"gpt": ROW})
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"words\n\n{MARKER}")
    assert "old" not in text
    assert "27.8 k" in text
    assert "data parallel" in picture.read_text(encoding="utf-8")


def test_the_page_shows_the_kept_results(tmp_path):
    rows = read(DOCS / "results" / "zoo")
    measured = [row for name, row in rows.items() if name in SMALL]
    assert measured
    assert all(row.difference <= TOLERANCE for row in measured)
    assert not any(row.whole_share for row in rows.values())
    page = DOCS / "zoo.md"
    copy = tmp_path / "zoo.md"
    copy.write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
    write(copy, tmp_path / "zoo.svg", rows)
    assert copy.read_text(encoding="utf-8") == page.read_text(encoding="utf-8")


def test_no_baseline_is_predicted_to_be_faster_than_the_searched_plan():
    for row in read(DOCS / "results" / "zoo").values():
        baselines_s = [step_s for step_s in row.baselines_s.values() if step_s is not None]
        assert row.step_s <= min(baselines_s, default=math.inf) * (1 + 1e-9), row.name
