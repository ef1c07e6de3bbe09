"""What the documentation shows, of Python and of the command line, is what is printed."""

import doctest
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from pipesched import NAMES, closed_form, schedule_entry
from pipesched.cli import main

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/pipesched.md"
README = ROOT / "packages/pipesched/README.md"


def updated(text: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The page's text with what its commands print now."""

    def block(match: re.Match[str]) -> str:
        shown = []
        for command in re.findall(r"^\$ python -m pipesched (.*)$", match[1], flags=re.MULTILINE):
            main(shlex.split(command))
            out, err = capsys.readouterr()
            shown.append(f"$ python -m pipesched {command}\n{out}{err}")
        return f"```console\n{''.join(shown)}```"

    return re.sub(r"```console\n(.*?)```", block, text, flags=re.DOTALL)


def test_commands_print_what_the_page_shows(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    update = request.config.getoption("--update-golden")
    monkeypatch.chdir(ROOT if update else tmp_path)  # where the pictures go
    Path("docs/pictures").mkdir(parents=True, exist_ok=True)
    text = updated(PAGE.read_text(encoding="utf-8"), capsys)
    if update:
        PAGE.write_text(text, encoding="utf-8")
    assert text == PAGE.read_text(encoding="utf-8")


def test_pictures_are_there() -> None:
    for page in (PAGE, README):
        shown = re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
        assert shown
        assert [path for path in shown if not (page.parent / path).is_file()] == []


def test_the_readme_runs() -> None:
    failed, tried = doctest.testfile(str(README), module_relative=False)
    assert (failed, tried > 10) == (0, True)


def test_the_table_has_every_schedule() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|", README.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert tuple(rows) == NAMES


def evaluated(formula: str, names: dict[str, Any]) -> float:
    """What comes first in a cell of the table: "3 (p - 1) / 2, p even" is 3*(p - 1) / 2."""
    first = re.split("; |, (?=if|more|p even)", formula)[0]
    return float(eval(re.sub(r"(?<=[\d)]) (?=[(pm])", "*", first), names))


@pytest.mark.parametrize(("n_ranks", "n_microbatches"), [(4, 16), (8, 32), (10, 60)])
def test_the_tables_formulas_are_those_of_closed_form(n_ranks: int, n_microbatches: int) -> None:
    rows = re.findall(
        r"^\| `([\w-]+)` \|[^|]*\| (.*) \| (.*) \| (.*) \|$",
        README.read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    names = {"p": n_ranks, "m": n_microbatches, "v": 2, "floor": math.floor, "min": min}
    known = [row for row in rows if row[2] != "planned"]
    assert len(known) == sum(schedule_entry(name).closed_form is not None for name in NAMES)
    for name, sizes, bubble, peak in known:
        chosen = "`n_chunks` v" in sizes
        n_chunks = 2 if chosen or "2 stages a rank" in sizes else 1
        form = closed_form(
            name,
            n_ranks * n_chunks,
            n_microbatches,
            **dict.fromkeys(("forward_s", "input_gradient_s", "weight_gradient_s"), 1 / n_chunks),
            n_chunks=2 if chosen else None,
        )
        assert form.bubble_s == pytest.approx(evaluated(bubble, names)), name
        if name != "inference":  # which holds one microbatch of one stage, not of a rank
            assert form.peak_activations / n_chunks == pytest.approx(evaluated(peak, names)), name
