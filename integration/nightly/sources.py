"""The test files of the repository, and digests of everything that each one depends on.

A test file of a package depends on itself, on the other files beside it that are not tests, on its
package and the packages that this one requires, and on the versions of the libraries. A test file
of `integration` depends on all packages and on the rest of that folder. A test file that reads
pages, benchmarks or examples depends on these, too.
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
"""The files that a night writes; a change of these does not make tests run again."""

_TESTS = (
    "packages/*/tests/**/test_*.py",
    "integration/test_*.py",
    "integration/*/tests/test_*.py",
)
_BUILT = {"__pycache__", "build", "dist", ".hypothesis", ".pytest_cache"}


def versions() -> dict[str, str]:
    """The versions of Python and of the installed libraries."""
    by_name = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            by_name[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return by_name


class Sources:
    """The sources as they are now.

    Args:
        root: The root of the repository.
        libraries: The versions of the libraries.
    """

    def __init__(self, root: Path, libraries: dict[str, str]) -> None:
        self.root, self.libraries = root, libraries
        self._digests: dict[Path, str] = {}

    @cached_property
    def tests(self) -> list[str]:
        """The paths of all test files, sorted."""
        paths = (path for pattern in _TESTS for path in self.root.glob(pattern))
        return sorted(self._name(path) for path in paths)

    @cached_property
    def requires(self) -> dict[str, frozenset[str]]:
        """For each package, the packages of this repository that it needs, including itself."""
        direct = {}
        for path in sorted(self.root.glob("packages/*/pyproject.toml")):
            tables = tomllib.loads(path.read_text())
            texts = re.findall(rf'["\']{PREFIX}([\w-]+)', path.read_text())
            direct[path.parent.name] = {t for t in texts if f"{PREFIX}{t}" != _name_of(tables)}
        all_needed = {}
        for package in direct:
            needed, todo = {package}, [package]
            for name in todo:  # the loop appends to this list
                new = direct.get(name, set()) - needed
                needed |= new
                todo += sorted(new)
            all_needed[package] = frozenset(needed)
        return all_needed

    def digest(self, test: str) -> str:
        """The digest of everything that a test file depends on.

        Args:
            test: The path of the file below the root.
        """
        digest = hashlib.sha256(repr(sorted(self.libraries.items())).encode())
        for part in sorted(self._parts(test)):
            digest.update(f"{self._name(part)}\0{self._of(part)}\0".encode())
        return digest.hexdigest()

    def text(self, test: str) -> str:
        """The text of a test file."""
        return (self.root / test).read_text()

    def _parts(self, test: str) -> Iterator[Path]:
        """What a test file depends on: files, and folders with all files in them except tests."""
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
        yield from (root / name for name in ("examples", ".ci") if f'"{name}"' in text)

    def _of(self, part: Path) -> str:
        """The digest of a file, or of all files in a folder except tests."""
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
