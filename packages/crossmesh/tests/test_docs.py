"""The examples in the documentation, in Python and on the command line, print what it shows."""

import doctest
import re
import shlex
from pathlib import Path

import pytest
from crossmesh.cli.commands import main

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "docs/crossmesh.md", ROOT / "packages/crossmesh/README.md"]


def updated(page, capsys):
    """The text of the page, with the present output of its commands."""

    def block(match):
        commands = re.findall(r"^\$ python -m crossmesh (.*)$", match[1], flags=re.MULTILINE)
        shown = []
        for command in commands:
            main(shlex.split(command))
            out, err = capsys.readouterr()
            shown.append(f"$ python -m crossmesh {command}\n{out}{err}")
        return f"```console\n{''.join(shown)}```"

    text = page.read_text(encoding="utf-8")
    return re.sub(r"```console\n(.*?)```", block, text, flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_print_what_the_page_shows(page, capsys, monkeypatch, tmp_path, request):
    update = request.config.getoption("--update-golden")
    monkeypatch.chdir(ROOT if update else tmp_path)  # where the pictures go
    Path("docs/pictures").mkdir(parents=True, exist_ok=True)
    text = updated(page, capsys)
    if update:
        page.write_text(text, encoding="utf-8")
    assert text == page.read_text(encoding="utf-8")


def test_the_readme_runs():
    failed, tried = doctest.testfile(str(PAGES[1]), module_relative=False)
    assert (failed, tried > 10) == (0, True)


def test_pictures_on_the_page_are_made_by_its_commands():
    text = PAGES[0].read_text(encoding="utf-8")
    shown = set(re.findall(r"\]\((pictures/[^)]+)\)", text))
    made = {f"pictures/{name}" for name in re.findall(r"--picture docs/pictures/(\S+)", text)}
    assert shown == made
    assert all((ROOT / "docs" / path).is_file() for path in shown)
