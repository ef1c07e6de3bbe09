"""A package's version in its pyproject.toml, and the pins of the packages that need it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from .errors import ReleaseError

PREFIX = "meshwright-"


def package_names(root: Path) -> list[str]:
    """The packages of the repository, sorted."""
    return sorted(path.parent.name for path in root.glob("packages/*/pyproject.toml"))


def version_of(root: Path, package: str) -> str:
    """The version that a package's pyproject.toml says."""
    return str(tomllib.loads(_project(root, package).read_text())["project"]["version"])


def checked(root: Path, package: str, version: str) -> Version:
    """The version as a value, if the package may get it next.

    Raises:
        ReleaseError: There is no such package, or the version is no later one of three numbers.
    """
    if package not in package_names(root):
        raise ReleaseError(
            f"a release names a folder of packages/; got {package!r}; "
            f"there are {', '.join(package_names(root))}"
        )
    try:
        wanted = Version(version)
    except InvalidVersion:
        wanted = None
    now = version_of(root, package)
    if wanted is None or len(wanted.release) != 3 or version != str(wanted) or wanted.local:
        raise ReleaseError(
            f"a version has three numbers, and perhaps rc1 behind them; got {version!r} for "
            f"{package}, which is at {now}; write for instance 0.2.0"
        )
    if wanted <= Version(now):
        raise ReleaseError(
            f"a new version is later than the present one; got {version} for {package}, "
            f"which is at {now}"
        )
    return wanted


def set_version(root: Path, package: str, version: str) -> list[str]:
    """Write a package's version, and move the pins of others that do not admit it.

    A pin that admits the version stays: a package says which version it needs, not which is new.

    Returns:
        The packages whose pins moved. What they need is different now, so they need a release, too.
    """
    path = _project(root, package)
    line = f'version = "{version_of(root, package)}"'
    path.write_text(path.read_text().replace(line, f'version = "{version}"', 1))
    return [name for name in package_names(root) if _move_pins(root, name, package, version)]


def _move_pins(root: Path, name: str, package: str, version: str) -> bool:
    """Move the pins of the package `name`; whether there was one to move."""
    path = _project(root, name)
    text = path.read_text()
    new = text
    for pin in _pins(text, package):
        requirement = Requirement(pin)
        if not requirement.specifier.contains(version, prereleases=True):
            moved = pin.removesuffix(str(requirement.specifier)) + f"~={version}"
            new = new.replace(f'"{pin}"', f'"{moved}"')
    if new != text:
        path.write_text(new)
    return new != text


def _pins(text: str, package: str) -> Iterator[str]:
    """The requirements on a package that a pyproject.toml has, as they are written."""
    yield from re.findall(rf'"({PREFIX}{package}(?:\[[^\]"]*\])?~=[^"]*)"', text)


def _project(root: Path, package: str) -> Path:
    return root / "packages" / package / "pyproject.toml"
