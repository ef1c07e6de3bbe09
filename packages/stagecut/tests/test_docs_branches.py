import doctest
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs/stagecut_branches.md"


def test_page_shows_what_it_prints():
    found = doctest.testfile(str(PAGE), module_relative=False)
    assert found.attempted
    assert not found.failed
