import json
from collections.abc import Callable
from pathlib import Path

import pytest
from nightly.entries import Entry, entries
from nightly.memory import Memory
from nightly.night import Outcome, night
from nightly.report import gather, keep, read, render
from nightly.sources import Sources

FILES = {
    "conftest.py": "",
    "pyproject.toml": "",
    "docs/low.md": "a page",
    "packages/low/pyproject.toml": '[project]\nname = "meshwright-low"\ndependencies = []\n',
    "packages/low/src/low/__init__.py": "LOW = 1",
    "packages/low/tests/conftest.py": "",
    "packages/low/tests/test_low.py": "import low",
    "packages/low/tests/test_docs.py": "PAGE = 'docs/low.md'",
    "packages/high/pyproject.toml": (
        '[project]\nname = "meshwright-high"\ndependencies = ["meshwright-low~=0.1.0"]\n'
    ),
    "packages/high/src/high/__init__.py": "HIGH = 1",
    "packages/high/tests/helper.py": "",
    "packages/high/tests/test_high.py": "from launching import run",
    "packages/high/benchmarks/test_speed.py": "import launching",
    "packages/high/benchmarks/ranks.py": "",
    "integration/launching/__init__.py": "",
    "integration/story/tell.py": "",
    "integration/story/tests/test_tell.py": "import story",
    "integration/test_story.py": 'import high, low\nFOLDER = "examples"',
}
VERSIONS = {"python": "3.11", "torch": "2.13"}
LOW, HIGH = "packages/low/tests/test_low.py", "packages/high/tests/test_high.py"
DOCS, SPEED = "packages/low/tests/test_docs.py", "packages/high/benchmarks/test_speed.py"
STORY, TELL = "integration/test_story.py", "integration/story/tests/test_tell.py"
OFTEN = f"{HIGH} beside a burner"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "tree"


@pytest.fixture
def memory(tmp_path: Path) -> Callable[[], Memory]:
    """Returns the record as a new night reads it."""
    return lambda: Memory(tmp_path / "cache" / "passed.json")


def sources(tree: Path) -> Sources:
    return Sources(tree, VERSIONS)


class Runs:
    """Records the entries that run; some of them may fail, and the night may be interrupted."""

    def __init__(self, fails: tuple[str, ...] = (), cut_after: int | None = None) -> None:
        self.names: list[str] = []
        self.fails, self.cut_after = fails, cut_after

    def __call__(self, entry: Entry) -> Outcome:
        if len(self.names) == self.cut_after:
            raise KeyboardInterrupt
        self.names.append(entry.name)
        return Outcome(entry.name not in self.fails, 60.0, f"said by {entry.name}")


def spend(tree: Path, memory: Memory, runs: Runs, times: int = 3) -> dict[str, str]:
    """Run a night on the sources."""
    every = entries(sources(tree), times)
    return night(every, memory, runs, lambda text: None, commit="abc", date="2026-11-23")


ONCE = {LOW, HIGH, DOCS, STORY, TELL}


def test_a_night_runs_all_tests_once_and_those_of_processes_often(tree, memory) -> None:
    runs = Runs()
    assert not spend(tree, memory(), runs)
    assert sorted(runs.names) == sorted([*ONCE, *3 * [OFTEN], *3 * [f"{SPEED} beside a burner"]])


def test_nothing_runs_again_on_unchanged_sources(tree, memory) -> None:
    spend(tree, memory(), Runs())
    again = Runs()
    assert not spend(tree, memory(), again)
    assert again.names == []


CHANGES = {
    "packages/low/src/low/__init__.py": ONCE,
    "packages/high/src/high/__init__.py": {HIGH, STORY, TELL},
    "packages/high/tests/helper.py": {HIGH},
    "packages/high/benchmarks/ranks.py": {STORY, TELL},
    "packages/low/tests/conftest.py": {LOW, DOCS},
    "packages/low/pyproject.toml": ONCE,
    "integration/story/tell.py": {STORY, TELL},
    "integration/launching/__init__.py": ONCE,
    "conftest.py": ONCE,
    "docs/low.md": {DOCS, STORY, TELL},
    "examples/one.py": {STORY},
    "docs/nights.md": set(),
    "docs/results/nights.json": set(),
    "packages/low/tests/__pycache__/a.pyc": set(),
    **{name: {name} for name in sorted(ONCE)},
}


@pytest.mark.parametrize("changed", CHANGES)
def test_the_tests_that_depend_on_a_changed_file_run_again(tree, memory, changed: str) -> None:
    spend(tree, memory(), Runs(), times=0)
    path = tree / changed
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{path.read_text() if path.exists() else ''}\n# changed")
    again = Runs()
    spend(tree, memory(), again, times=0)
    assert set(again.names) == CHANGES[changed]


def test_other_versions_run_all_again(tree) -> None:
    digests = [Sources(tree, {"python": version}).digest(LOW) for version in ("3.11", "3.12")]
    assert digests[0] != digests[1]


@pytest.mark.parametrize("cut_after", range(12))
def test_an_interrupted_night_is_continued(tree, memory, cut_after: int) -> None:
    whole, first, rest = Runs(), Runs(cut_after=cut_after), Runs()
    spend(tree, Memory(tree.parent / "other.json"), whole)
    if cut_after < len(whole.names):
        with pytest.raises(KeyboardInterrupt):
            spend(tree, memory(), first)
    else:
        spend(tree, memory(), first)
    spend(tree, memory(), rest)
    assert [*first.names, *rest.names] == whole.names


def test_a_failure_is_told_and_runs_again(tree, memory) -> None:
    assert spend(tree, memory(), Runs((LOW,))) == {LOW: f"said by {LOW}"}
    again = Runs()
    assert not spend(tree, memory(), again)
    assert again.names == [LOW]


def test_a_failure_beside_a_burner_ends_its_runs_and_discards_those_before(tree, memory) -> None:
    spend(tree, memory(), Runs(), times=2)
    runs, again = Runs((OFTEN,)), Runs()
    assert list(spend(tree, memory(), runs, times=5)) == [OFTEN]
    assert runs.names.count(OFTEN) == 1
    spend(tree, memory(), again, times=5)
    assert again.names == 5 * [OFTEN]


def test_a_test_that_has_passed_often_enough_does_not_run_again_by_day(tree, memory) -> None:
    spend(tree, memory(), Runs(), times=3)
    by_day = Runs()
    spend(tree, memory(), by_day, times=2)
    assert by_day.names == []


def test_lines_report_the_progress(tree, memory) -> None:
    said: list[str] = []
    every = entries(sources(tree), 3)
    night(every, memory(), Runs((LOW,)), said.append, commit="abc", date="", at_once=1)
    assert said[0] == "0 of 7 have passed as they are"
    assert said[1] == f"1 of 7  {TELL}: passed, 60 s; 10 min left"
    assert f"5 of 7  {LOW}: FAILED, 60 s; 6 min left" in said
    assert said[-1] == f"7 of 7  {SPEED} beside a burner: passed 3 of 3 times, 60 s; 0 min left"


def test_the_page_shows_which_tests_passed_on_which_commit(tree, memory) -> None:
    remembered = memory()
    spend(tree, remembered, Runs((LOW,)))
    every = entries(sources(tree), 3)
    keep(gather(every, remembered, VERSIONS, {}), tree / "docs")
    page = (tree / "docs" / "nights.md").read_text()
    assert "Versions: python 3.11, torch 2.13." in page
    assert f"| `{HIGH}` | `abc` | 2026-11-23 | 60 | 3 times |" in page
    assert f"| `{SPEED}` | `abc` | 2026-11-23 | not alone | 3 times |" in page
    assert LOW not in page
    assert page == render(json.loads((tree / "docs" / "results" / "nights.json").read_text()))


def test_rows_of_another_machine_stay_until_their_files_go(tree, memory) -> None:
    first = memory()
    spend(tree, first, Runs())
    keep(gather(entries(sources(tree), 3), first, VERSIONS, {}), tree / "docs")
    (tree / LOW).unlink()
    elsewhere = Memory(tree.parent / "other.json")
    kept = gather(entries(sources(tree), 3), elsewhere, VERSIONS, read(tree / "docs"))
    assert set(kept["passed"]) == {*ONCE, OFTEN, f"{SPEED} beside a burner"} - {LOW}
