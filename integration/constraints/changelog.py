"""A commit that changes what a package installs says so in the package's CHANGELOG.md."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from .projects import Project

TRAILER = "Changelog: none"


def check_changelog(projects: Mapping[str, Project], root: Path) -> Iterator[str]:
    """Yield a violation for each src/ that differs from the previous commit's without an entry.

    The working tree is compared, so it fails before the commit too. Without git, without a
    repository at `root`, and where no previous commit is at hand (the first one, a shallow clone),
    there is nothing to compare and nothing is yielded.
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
                f"write what a user notices, or {TRAILER!r} in the commit message if nothing"
            )


def _git(root: Path, *args: str) -> str | None:
    """What git prints, None if it fails or is not there."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *args], capture_output=True, text=True, check=True, timeout=300
        )
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return done.stdout
