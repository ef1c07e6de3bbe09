"""A commit that changes the sources of a package has an entry in the package's CHANGELOG.md."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from .projects import Project

TRAILER = "Changelog: none"


def check_changelog(projects: Mapping[str, Project], root: Path) -> Iterator[str]:
    """Yield a violation for each src/ that differs from the previous commit without an entry.

    The working tree is compared with the previous commit, so it also fails before the commit is
    made. Nothing is yielded if there is no git, no repository at `root`, or no previous commit
    (after the first commit, or in a shallow clone).
    """
    if _git(root, "rev-parse", "--verify", "HEAD~1") is None:
        return
    message = _git(root, "log", "-1", "--format=%B") or ""
    if TRAILER in message.splitlines() and _git(root, "diff", "HEAD") == "":
        return
    changed = (_git(root, "diff", "--name-only", "--relative", "HEAD~1") or "").splitlines()
    for project in projects.values():
        folder = f"packages/{project.name}"
        sources = [file for file in changed if file.startswith(f"{folder}/src/")]
        if sources and f"{folder}/CHANGELOG.md" not in changed:
            yield (
                f"{folder}/CHANGELOG.md: a changed src/ has an entry under Unreleased; got none "
                f"since the previous commit, for {', '.join(sources[:3])} ({len(sources)} files); "
                f"write what users notice, or {TRAILER!r} in the commit message if they notice "
                "nothing"
            )


def _git(root: Path, *args: str) -> str | None:
    """The output of git; None if it fails or is not installed."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *args], capture_output=True, text=True, check=True, timeout=300
        )
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return done.stdout
