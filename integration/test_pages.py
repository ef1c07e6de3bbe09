"""The code on the pages of docs/ runs: programs of Python as one, commands in their order."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from launching import run

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = (
    *("start", "read_a_plan", "jax_model", "clusters", "train_for_real", "tune", "packages"),
    *("how_it_works", "microbatches", "padding", "recompute", "attention", "weight_sync"),
    *("trainers", "unlike_hosts", "elastic"),
)
LONG = ("start", "trainers", "unlike_hosts", "elastic")
"""Pages whose code takes long; by day, tests of their own try what they are about."""

BLOCK = re.compile(
    r"(<!-- not run: [^>]+ -->\n)?^```(python|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE
)


def command_of(line: str) -> list[str]:
    """A command of a page, run by this Python; the console script is that of the environment."""
    words = shlex.split(line)
    assert words[0] in ("meshwright", "python"), f"mark what no test runs: {line}"
    return [sys.executable, *(["-m", "frontends"] if words[0] == "meshwright" else []), *words[1:]]


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=pytest.mark.nightly if p in LONG else ()) for p in PAGES]
)
def test_the_code_of_a_page_runs(page: str, tmp_path: Path) -> None:
    blocks = BLOCK.findall((DOCS / f"{page}.md").read_text())
    run_blocks = [(kind, code) for marked, kind, code in blocks if not marked]
    assert run_blocks
    program = "".join(code for kind, code in run_blocks if kind == "python")
    if program:
        ended = run([sys.executable, "-c", program], deadline_s=600, cwd=tmp_path)
        assert ended.status == 0, ended.output
    for line in "".join(code for kind, code in run_blocks if kind == "sh").splitlines():
        ended = run(command_of(line), deadline_s=600, cwd=tmp_path)
        assert ended.status == 0, ended.output


def test_a_page_with_code_is_run_or_says_why_not() -> None:
    elsewhere = {  # by page, which test runs its code, or why none does
        "index": "test_readme.py has these two commands",
        "autoshard": "packages/autoshard/tests/test_docs.py",
        "calibration": "measures for minutes; packages/costmodel/tests measures less",
        "contributing": "commands of nox",
        "crossmesh": "packages/crossmesh/tests/test_docs.py",
        "extending": "test_extending.py",
        "costs": "needs root and emulated hosts",
        "jax": "fragments of a program; packages/frontends/tests/test_variants.py has such steps",
        "pipesched": "packages/pipesched/tests/test_docs.py",
        "pytorch": "test_pytorch_page.py",
        "releasing": "commands of nox",
        "several_processes": "test_processes.py of frontends; the rest needs root or two hosts",
        "shardspec": "packages/shardspec/tests/test_docs.py",
        "stagecut": "packages/stagecut/tests/test_docs.py",
        "stagecut_branches": "packages/stagecut/tests/test_docs_branches.py",
        "train": "test_main_job.py",
        "zoo": "test_zoo_table.py",
    }
    with_code = {path.stem for path in DOCS.glob("*.md") if BLOCK.search(path.read_text())}
    assert with_code - set(PAGES) - set(elsewhere) == set()
