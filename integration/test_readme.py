"""The repository's README is true: its programs run, its table is complete, its links exist."""

import re
import sys
from pathlib import Path

import pytest
from launching import run

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


PROGRAMS = re.findall(r"^```python\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("program", PROGRAMS, ids=["jax", "torch"])
def test_the_example_runs_and_prints_its_plan(program, tmp_path):
    assert program.rstrip().endswith("print(step.plan)")
    ended = run([sys.executable, "-c", program], deadline_s=600, cwd=tmp_path)
    assert ended.status == 0, ended.output
    assert ended.output.strip()


def test_the_table_has_every_package():
    listed = re.findall(r"^\| \[`(\w+)`\]\(packages/(\w+)/README\.md\)", README, flags=re.MULTILINE)
    packages = {path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")}
    assert {name for name, _ in listed} == {folder for _, folder in listed} == packages


def test_it_is_short_enough_to_be_read() -> None:
    assert len(README.splitlines()) <= 150


def test_its_figures_are_those_of_the_ten_rows() -> None:
    rows = re.findall(r"^\| (?:How|What) .*? \| (.*?) \| (.*?) \| `", README, flags=re.MULTILINE)
    figures = {f for row in rows for f in re.findall(r"\d[\d,]*\.?\d+", " ".join(row))}
    page = (ROOT / "docs" / "figures.md").read_text()
    assert len(rows) == 3
    assert {figure for figure in figures if figure not in page} == set()


def test_its_benchmarks_exist() -> None:
    named = re.findall(r"`pytest (packages/\S+)`", README)
    assert len(named) == 3
    assert all((ROOT / path).is_file() for path in named)


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/architecture.md"])
def test_relative_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert links == [link for link in links if (ROOT / page).parent.joinpath(link).exists()]
