"""What the documentation shows, of Python and of the command line, is what is printed."""

import contextlib
import doctest
import os
import re
import shlex
from pathlib import Path

import pytest
from shardspec.cli.commands import main

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "docs/shardspec.md", ROOT / "packages/shardspec/README.md"]


def updated(page, capsys):
    """The page's text with what its commands print now."""

    def block(match):
        commands = re.findall(r"^\$ python -m shardspec (.*)$", match[1], flags=re.MULTILINE)
        shown = []
        for command in commands:
            with contextlib.suppress(SystemExit):  # an error, which is then part of the page
                main(shlex.split(command))
            out, err = capsys.readouterr()
            shown.append(f"$ python -m shardspec {command}\n{out}{err}")
        return f"```console\n{''.join(shown)}```"

    return re.sub(r"```console\n(.*?)```", block, page.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_print_what_the_page_shows(page, capsys, monkeypatch, tmp_path, request):
    update = request.config.getoption("--update-golden")
    monkeypatch.chdir(ROOT if update else tmp_path)  # where the pictures go
    os.makedirs("docs/pictures", exist_ok=True)
    text = updated(page, capsys)
    if update:
        page.write_text(text)
    assert text == page.read_text()


def test_the_readme_runs():
    failed, tried = doctest.testfile(str(PAGES[1]), module_relative=False)
    assert (failed, tried > 10) == (0, True)


def test_pictures_on_the_page_are_made_by_its_commands():
    text = PAGES[0].read_text()
    shown = set(re.findall(r"\]\((pictures/[^)]+)\)", text))
    made = {f"pictures/{name}" for name in re.findall(r"--picture docs/pictures/(\S+)", text)}
    assert shown == made
    assert all((ROOT / "docs" / path).is_file() for path in shown)
