"""Where the project is at home, in every file that says so; before this, no file does."""

from __future__ import annotations

import re
from pathlib import Path

from .errors import ReleaseError
from .versions import package_names

_URL = re.compile(r"https://[\w.-]+\.[a-z]+(/[\w.-]+)+")
_AFTER = 'license-files = ["LICENSE"]\n'
"""The line of a pyproject.toml after which its addresses stand."""


def set_urls(root: Path, url: str) -> list[Path]:
    """Write the address of the repository into every file that needs it, over an earlier one.

    Returns:
        The files, relative to `root`.

    Raises:
        ReleaseError: It is no address of a repository.
    """
    if not _URL.fullmatch(url):
        raise ReleaseError(
            f"the address of a repository is https://, a host and a path; got {url!r}; write for "
            "instance https://example.org/owner/meshwright"
        )
    written = {}
    for name in package_names(root):
        path = root / "packages" / name / "pyproject.toml"
        text = re.sub(r"^urls\..*\n", "", path.read_text(), flags=re.MULTILINE)
        if _AFTER not in text:
            raise ReleaseError(
                f"the addresses of a package stand after its line {_AFTER.strip()!r}; "
                f"packages/{name}/pyproject.toml has no such line; add it"
            )
        written[path] = text.replace(_AFTER, _AFTER + _addresses(url, name), 1)
    citation = root / "CITATION.cff"
    if citation.exists():
        text = re.sub(r"^repository-code: .*\n", "", citation.read_text(), flags=re.MULTILINE)
        written[citation] = f"{text.rstrip()}\nrepository-code: {url}\n"
    for path, text in written.items():
        path.write_text(text)
    return [path.relative_to(root) for path in written]


def _addresses(url: str, package: str) -> str:
    folder = f"packages/{package}"
    return (
        f'urls.Source = "{url}/tree/HEAD/{folder}"\n'
        f'urls.Changelog = "{url}/blob/HEAD/{folder}/CHANGELOG.md"\n'
        f'urls.Issues = "{url}/issues"\n'
    )
