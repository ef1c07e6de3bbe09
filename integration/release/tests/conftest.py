"""A small repository of two packages, the second of which needs the first."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

PROJECT = """\
[build-system]
requires = ["hatchling>=1.26"]
build-backend = "hatchling.build"

[project]
name = "meshwright-{name}"
version = "0.1.0"
license-files = ["LICENSE"]
dependencies = [{needs}]
"""


@pytest.fixture
def git(tmp_path: Path) -> Callable[..., str]:
    """git("log") runs git in the repository."""

    def run(*arguments: str) -> str:
        command = ["git", "-C", tmp_path, *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        return done.stdout

    return run


@pytest.fixture
def commit(git: Callable[..., str]) -> Callable[[], None]:
    """Commits everything."""

    def commit_all() -> None:
        git("add", "--all")
        git("commit", "--quiet", "--allow-empty", "--message", "Change")

    return commit_all


@pytest.fixture
def root(tmp_path: Path, git: Callable[..., str], commit: Callable[[], None]) -> Path:
    """The repository, with everything committed."""
    needs = '"numpy>=1.26", "meshwright-shardspec[plot]~=0.1.0"'
    for name, needed in (("shardspec", '"numpy>=1.26"'), ("costmodel", needs)):
        folder = tmp_path / "packages" / name
        folder.mkdir(parents=True)
        (folder / "pyproject.toml").write_text(PROJECT.format(name=name, needs=needed))
        (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n## Unreleased\n\nNew in {name}.\n")
    git("init", "--quiet")
    for key, value in (("user.name", "A"), ("user.email", "a@example.org")):
        git("config", key, value)
    git("config", "commit.gpgsign", "false")
    git("config", "tag.gpgsign", "false")
    commit()
    return tmp_path
