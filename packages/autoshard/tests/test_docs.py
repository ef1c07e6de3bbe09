"""The documentation shows the actual output of Python and of the command line."""

import doctest
import re
import shlex
import shutil
from pathlib import Path

from autoshard import METHODS, Graph
from autoshard.cli.commands import main

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/autoshard.md"
README = ROOT / "packages/autoshard/README.md"


def texts(page):
    """The files that a page shows, by name."""
    return dict(re.findall(r"```text (\S+)\n(.*?)```", page, flags=re.DOTALL))


def updated(page, capsys):
    """A page with the present output of its commands."""

    def block(match):
        shown = []
        for command in re.findall(r"^\$ python -m autoshard (.*)$", match[1], flags=re.MULTILINE):
            main(shlex.split(command))
            out, err = capsys.readouterr()
            shown.append(f"$ python -m autoshard {command}\n{out}{err}")
        return f"```console\n{''.join(shown)}```"

    return re.sub(r"```console\n(.*?)```", block, page, flags=re.DOTALL)


def test_commands_print_what_the_page_shows(capsys, monkeypatch, tmp_path, request):
    update = request.config.getoption("--update-golden")
    monkeypatch.chdir(tmp_path)
    Path("docs/pictures").mkdir(parents=True)
    page = PAGE.read_text(encoding="utf-8")
    for name, text in texts(page).items():
        Path(name).write_text(text, encoding="utf-8")
    found = updated(page, capsys)
    made = {path.name for path in Path("docs/pictures").iterdir()}
    assert made == set(re.findall(r"--picture docs/pictures/(\S+)", page))
    shown = set(re.findall(r"\]\(pictures/([^)]+)\)", page))
    assert made <= shown
    if update:
        PAGE.write_text(found, encoding="utf-8")
        shutil.copytree("docs/pictures", ROOT / "docs/pictures", dirs_exist_ok=True)
    assert all((ROOT / "docs/pictures" / name).is_file() for name in shown)
    assert found == PAGE.read_text(encoding="utf-8")


def test_the_pages_graph_is_as_graphs_print():
    for text in texts(PAGE.read_text(encoding="utf-8")).values():
        assert str(Graph.parse(text)) == text.strip()


def test_every_function_that_an_arrow_points_to_is_there():
    sources = ROOT / "packages/autoshard/src/autoshard"
    text = PAGE.read_text(encoding="utf-8")
    pointed = re.findall(r"(?:->|→) `?(\w+)\.(?:\w+\.)?(\w+)", text)
    assert len(pointed) > 10
    for module, name in pointed:
        if module[0].islower():  # else a class named just before
            (file,) = sources.glob(f"*/{module}.py")
            source = file.read_text(encoding="utf-8")
            assert re.search(rf"^ *(def|class) {name}\b", source, flags=re.MULTILINE), (
                module,
                name,
            )


def test_every_method_is_on_the_page():
    page = PAGE.read_text(encoding="utf-8")
    assert [method for method in METHODS if f"`{method}`" not in page] == []


def test_the_readme_runs():
    failed, tried = doctest.testfile(str(README), module_relative=False)
    assert (failed, tried > 10) == (0, True)
