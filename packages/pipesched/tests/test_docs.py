"""What the documentation shows, of Python and of the command line, is what is printed."""

import doctest
import re
import shlex
from pathlib import Path

import pytest
from pipesched import NAMES
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
    update = request.config.getoption("--update-golden", default=False)
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
