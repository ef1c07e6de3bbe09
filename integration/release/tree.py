"""Git: a release is made of committed files, and its tags say of which commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .changelog import is_released
from .errors import ReleaseError
from .versions import package_names, version_of


def require_clean(root: Path) -> None:
    """Refuse a tree with files that are changed or new.

    Raises:
        ReleaseError: There are such files, or `root` is no repository of git.
    """
    changed = _git(root, "status", "--porcelain").splitlines()
    if changed:
        files = ", ".join(line[3:] for line in changed[:3])
        raise ReleaseError(
            f"a release is made of committed files only; {len(changed)} are changed or new "
            f"({files}{', ...' if len(changed) > 3 else ''}); commit or remove them"
        )


def tag(root: Path) -> list[str]:
    """Tag the present commit for each package whose version has no tag yet; pushes nothing.

    Returns:
        The new tags, such as `shardspec-v0.2.0`.

    Raises:
        ReleaseError: A version without a tag is not in the package's changelog; nothing is tagged.
    """
    versions = {name: version_of(root, name) for name in package_names(root)}
    known = set(_git(root, "tag", "--list").split())
    new = {f"{name}-v{version}": name for name, version in versions.items()}
    new = {text: name for text, name in new.items() if text not in known}
    for name in new.values():
        if not is_released(root, name, versions[name]):
            raise ReleaseError(
                f"a tagged version is in the changelog; packages/{name}/CHANGELOG.md has no "
                f"section of {versions[name]}; make the release by: bump {name} VERSION"
            )
    for text, name in new.items():
        _git(root, "tag", "--annotate", "--message", f"{name} {versions[name]}", text)
    return list(new)


def _git(root: Path, *arguments: str) -> str:
    """The output of git.

    Raises:
        ReleaseError: Git is not installed, or fails; the message has what it says.
    """
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    except FileNotFoundError:
        raise ReleaseError("a release needs git, which is not installed; install it") from None
    except subprocess.CalledProcessError as error:
        raise ReleaseError(
            f"a release needs git to succeed; {' '.join(command)} says: {error.stderr.strip()}"
        ) from None
    return done.stdout
