"""Fixtures that write a small repository of packages to check."""

from collections.abc import Callable
from pathlib import Path

import pytest

Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """write("packages/x/src/x/a.py", "import numpy") writes a file in `tmp_path`."""

    def write_file(path: str, text: str = "") -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    return write_file


@pytest.fixture
def package(write: Write) -> Write:
    """package("shardspec", requires=["numpy"]) writes pyproject.toml and an empty __init__.py."""

    def write_package(name, *, version="0.1.0", requires=(), extras=None, test=()):
        lines = ["[project]", f'name = "meshwright-{name}"', f'version = "{version}"']
        lines.append(f"dependencies = {list(requires)}")
        lines += [f"optional-dependencies.{key} = {value}" for key, value in (extras or {}).items()]
        lines += ["[dependency-groups]", f"test = {list(test)}"]
        write(f"packages/{name}/pyproject.toml", "\n".join(lines))
        write(f"packages/{name}/src/{name}/__init__.py")

    return write_package
