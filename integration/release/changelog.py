"""The changelog of a package: what stands under "Unreleased" becomes a version."""

from __future__ import annotations

import re
from pathlib import Path

from .errors import ReleaseError

UNRELEASED = "## Unreleased"
MOST_WORDS = 400
"""A changelog tells users what they notice; whoever wants to know more reads the history."""


def release_notes(root: Path, package: str) -> str:
    """What stands under "Unreleased" in the changelog of a package.

    Raises:
        ReleaseError: There is no such section, nothing is in it, or more than anybody reads.
    """
    path = _changelog(root, package)
    sections = _sections(path.read_text() if path.exists() else "")
    if UNRELEASED not in sections:
        raise ReleaseError(
            f"a changelog has a section {UNRELEASED!r}; {_shown(root, path)} has none; "
            "add it on top"
        )
    notes = sections[UNRELEASED].strip()
    words = len(notes.split())
    if not words:
        raise ReleaseError(
            f"a release says what users notice; nothing is under {UNRELEASED!r} in "
            f"{_shown(root, path)}; write at least a sentence"
        )
    if words > MOST_WORDS:
        raise ReleaseError(
            f"a release says what users notice in at most {MOST_WORDS} words; "
            f"{_shown(root, path)} has {words} under {UNRELEASED!r}; cut it"
        )
    return notes


def cut(root: Path, package: str, version: str, day: str) -> None:
    """Give what is unreleased its version and date, below a new empty section."""
    path = _changelog(root, package)
    heading = f"{UNRELEASED}\n\n## {version} ({day})"
    path.write_text(path.read_text().replace(UNRELEASED, heading, 1))


def is_released(root: Path, package: str, version: str) -> bool:
    """Whether the changelog of a package has a section of this version."""
    path = _changelog(root, package)
    headings = _sections(path.read_text() if path.exists() else "")
    return any(heading.startswith(f"## {version} (") for heading in headings)


def _sections(text: str) -> dict[str, str]:
    """The sections of a changelog by their headings."""
    _, *parts = re.split(r"^(## .*)$", text, flags=re.MULTILINE)
    return {heading.strip(): body for heading, body in zip(parts[::2], parts[1::2], strict=True)}


def _changelog(root: Path, package: str) -> Path:
    return root / "packages" / package / "CHANGELOG.md"


def _shown(root: Path, path: Path) -> Path:
    return path.relative_to(root)
