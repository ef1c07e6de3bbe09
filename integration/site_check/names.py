"""The public names of all packages, and their docstrings, read from the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGES = Path(__file__).resolve().parents[2] / "packages"
MODULES = (
    *("shardspec", "costmodel", "autoshard", "stagecut", "crossmesh", "pipesched"),
    *("frontends", "frontends.jax", "frontends.torch"),
)
"""The modules whose `__all__` users import from; each has a page of the reference."""


def public_names(module: str) -> dict[str, str]:
    """The names of a module's `__all__`, each with the module that it is imported from."""
    body = ast.parse(_path(module).read_text(encoding="utf-8")).body
    listed = next(s.value for s in body if isinstance(s, ast.Assign) and _targets(s) == ["__all__"])
    origins = {
        alias.asname or alias.name: statement.module or ""
        for statement in body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    return {name: origins.get(name, module) for name in ast.literal_eval(listed)}


def docstring(module: str, name: str) -> str:
    """The docstring of a public name: its own, or the text below its assignment; or empty."""
    return _docstrings(module.partition(".")[0]).get(name, "")


@cache
def _docstrings(package: str) -> dict[str, str]:
    """By name at the top level of any module of the package, the longest docstring of it."""
    found: dict[str, str] = {}
    for path in sorted(_path(package).parent.rglob("*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for name, text in _documented(body):
            found[name] = max(found.get(name, ""), text, key=len)
    return found


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement, below in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            yield statement.name, ast.get_docstring(statement) or ""
        elif isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            for name in _targets(statement):
                yield name, str(below.value.value)


def _targets(statement: ast.stmt) -> list[str]:
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _path(module: str) -> Path:
    package, *inner = module.split(".")
    return PACKAGES.joinpath(package, "src", package, *inner, "__init__.py")
