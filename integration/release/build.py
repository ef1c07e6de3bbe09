"""Builds the distributions of all packages, and tries them as a user would who has only them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

from .errors import ReleaseError
from .versions import PREFIX, package_names, version_of


def build(root: Path, folder: Path) -> None:
    """Build an sdist of each package, and its wheel out of the sdist, into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in package_names(root):
        print(f"building {name} {version_of(root, name)}", flush=True)
        source = str(root / "packages" / name)
        _run([sys.executable, "-m", "build", "--outdir", str(folder), source])


def check(root: Path, folder: Path) -> None:
    """Check built distributions: their contents and metadata, and that a user can import them.

    All wheels that fit this Python are installed into an empty environment by one command, so
    packages find each other without an index; other dependencies come from the index. Then each is
    imported in a process of its own.

    Raises:
        ReleaseError: A package has no wheel, or a distribution fails; the message says which.
    """
    files = sorted(path for path in folder.glob("*") if path.suffix in (".whl", ".gz"))
    for path in files:
        _require_files(path)
    _run([sys.executable, "-m", "twine", "check", "--strict", *map(str, files)])
    with tempfile.TemporaryDirectory() as empty:
        venv.create(empty, with_pip=True)
        python = str(Path(empty, "bin", "python"))
        wheels = [str(_wheel(root, files, name)) for name in package_names(root)]
        _run([python, "-m", "pip", "install", "--quiet", *wheels])
        for name in package_names(root):
            print(f"importing {name}", flush=True)
            code = f"import {name}; assert {name}.__version__ == {version_of(root, name)!r}"
            _run([python, "-I", "-c", code], cwd=empty)
        _run([str(Path(empty, "bin", "meshwright")), "--version"], cwd=empty)


def _wheel(root: Path, files: Sequence[Path], package: str) -> Path:
    """The wheel of a package's present version for this Python."""
    start = f"{PREFIX}{package}".replace("-", "_") + f"-{version_of(root, package)}-"
    this = f"cp{sys.version_info.major}{sys.version_info.minor}"
    for path in files:
        if path.name.startswith(start) and path.name[len(start) :].startswith(("py3-", f"{this}-")):
            return path
    raise ReleaseError(
        f"every package has a wheel for the Python that checks it; there is none of {package} "
        f"{version_of(root, package)} for {this}; build it first"
    )


def _require_files(path: Path) -> None:
    """Check that a distribution has the license, and the mark that it has type annotations."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
    else:
        with tarfile.open(path) as sdist:
            names = sdist.getnames()
    for needed in ("LICENSE", "py.typed"):
        if not any(name.rpartition("/")[2] == needed for name in names):
            raise ReleaseError(
                f"a distribution contains {needed}; {path.name} does not; add it to what the "
                "package's pyproject.toml builds"
            )


def _run(command: Sequence[str], cwd: str | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=3600)
    if done.returncode:
        raise ReleaseError(
            f"every step of a release succeeds; {' '.join(command)} ended with status "
            f"{done.returncode}:\n{done.stdout}{done.stderr}"
        )
