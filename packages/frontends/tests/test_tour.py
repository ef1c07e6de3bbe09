"""`meshwright demo` plans three models for three clusters, and writes a page of each plan."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def toured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The folder of the pages, what was printed, and what the browser was told to open."""
    folder = tmp_path_factory.mktemp("tour")
    browser = folder / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {folder}/opened\n')
    browser.chmod(0o755)
    arguments = ["demo", "--output", str(folder / "pages"), "--open"]
    ended = subprocess.run(
        [sys.executable, "-m", "frontends", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "BROWSER": f"{browser} %s"},
    )
    assert ended.returncode == 0, ended.stderr
    return folder / "pages", ended.stdout, (folder / "opened").read_text().strip()


def test_every_pair_has_a_table_and_a_page(toured: tuple[Path, str, str]) -> None:
    folder, printed, _ = toured
    pages = sorted(path.name for path in folder.iterdir())
    assert len(pages) == 9
    assert len(re.findall(r"^stage +layers +mesh", printed, flags=re.MULTILINE)) == 9
    for page in pages:
        model, _, preset = page.removesuffix(".html").partition("_")
        assert f"{model} on {preset}" in printed
        assert f"Plan for cluster {preset}:1" in printed
        assert preset in (folder / page).read_text()


def test_the_first_page_is_opened(toured: tuple[Path, str, str]) -> None:
    folder, printed, opened = toured
    assert opened == (folder / "gpt-350m_p3.16xlarge.html").as_uri()
    assert str(folder) in printed


def test_a_folder_that_cannot_be_made_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = subprocess.run(
        [sys.executable, "-m", "frontends", "demo", "--output", str(tmp_path / "file" / "below")],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 1
    assert re.fullmatch(r"error: results are written to a folder; .*\n", ended.stderr)
