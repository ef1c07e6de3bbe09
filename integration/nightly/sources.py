"""The files of tests in a tree, and digests of all that each of them depends on.

A test of a package depends on itself, on what is beside it that is no test, on its package and on
those that this one requires, and on the versions of the libraries. One of `integration` depends on
all packages and on the rest of that folder. Who reads pages or benchmarks depends on them, too.
"""

from __future__ import annotations

import hashlib
import platform
import re
import tomllib
from collections.abc import Iterator
from functools import cached_property
from importlib import metadata
from pathlib import Path

PREFIX = "meshwright-"
LIBRARIES = ("torch", "jax", "jaxlib", "numpy", "transformers", "flax", "equinox", "hypothesis")
EVERYWHERE = ("conftest.py", "pyproject.toml", "integration/launching")
OWN_PAGES = ("docs/nights.md", "docs/results/nights.json")
"""What a night writes: it does not run again for that."""

_TESTS = (
    "packages/*/tests/**/test_*.py",
    "integration/test_*.py",
    "integration/*/tests/test_*.py",
)
_BUILT = {"__pycache__", "build", "dist", ".hypothesis", ".pytest_cache"}


def versions() -> dict[str, str]:
    """Of Python and of the libraries that are there."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


class Sources:
    """A tree as it is now.

    Args:
        root: Of the repository.
        libraries: Their versions.
    """

    def __init__(self, root: Path, libraries: dict[str, str]) -> None:
        self.root, self.libraries = root, libraries
        self._digests: dict[Path, str] = {}

    @cached_property
    def tests(self) -> list[str]:
        """The paths of all files of tests, sorted."""
        found = (path for pattern in _TESTS for path in self.root.glob(pattern))
        return sorted(self._name(path) for path in found)

    @cached_property
    def requires(self) -> dict[str, frozenset[str]]:
        """The packages of this tree that a package needs, itself among them."""
        direct = {}
        for path in sorted(self.root.glob("packages/*/pyproject.toml")):
            tables = tomllib.loads(path.read_text())
            texts = re.findall(rf'["\']{PREFIX}([\w-]+)', path.read_text())
            direct[path.parent.name] = {t for t in texts if f"{PREFIX}{t}" != _name_of(tables)}
        found = {}
        for package in direct:
            needed, todo = {package}, [package]
            for name in todo:  # grows as it is read
                new = direct.get(name, set()) - needed
                needed |= new
                todo += sorted(new)
            found[package] = frozenset(needed)
        return found

    def digest(self, test: str) -> str:
        """Of all that a file of tests depends on.

        Args:
            test: Its path below the root.
        """
        digest = hashlib.sha256(repr(sorted(self.libraries.items())).encode())
        for part in sorted(self._parts(test)):
            digest.update(f"{self._name(part)}\0{self._of(part)}\0".encode())
        return digest.hexdigest()

    def text(self, test: str) -> str:
        """What a file of tests says."""
        return (self.root / test).read_text()

    def _parts(self, test: str) -> Iterator[Path]:
        """Files, and folders with all that is in them but tests."""
        root, text = self.root, self.text(test)
        yield root / test
        yield from (root / part for part in EVERYWHERE)
        folder, name, *_ = Path(test).parts
        if folder == "packages":
            needed = self.requires[name]
            yield root / "packages" / name / "tests"
        else:
            needed = frozenset(self.requires)
            yield root / "integration"
        for package in needed:
            for part in ("src", "cpp", "pyproject.toml", "CMakeLists.txt", "README.md"):
                yield root / "packages" / package / part
            if folder == "integration" or "benchmarks" in f"{test} {text}":
                yield root / "packages" / package / "benchmarks"
        if folder == "integration" or "docs" in text:
            yield root / "docs"
            yield root / "README.md"
        if "noxfile" in text:
            yield root / "noxfile.py"

    def _of(self, part: Path) -> str:
        """Digest of a file, or of all in a folder but files of tests."""
        if part not in self._digests:
            digest = hashlib.sha256()
            is_folder = part.is_dir()
            for path in sorted(part.rglob("*")) if is_folder else [part]:
                if path.is_file() and not (is_folder and self._is_left_out(path)):
                    digest.update(f"{self._name(path)}\0".encode() + path.read_bytes() + b"\0")
            self._digests[part] = digest.hexdigest()
        return self._digests[part]

    def _is_left_out(self, path: Path) -> bool:
        name = self._name(path)
        return name in self._tests or name in OWN_PAGES or not _BUILT.isdisjoint(path.parts)

    @cached_property
    def _tests(self) -> frozenset[str]:
        return frozenset(self.tests)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def _name_of(tables: dict[str, dict[str, str]]) -> str:
    return tables["project"]["name"]
