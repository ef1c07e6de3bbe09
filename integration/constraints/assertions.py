"""What a package checks while it runs is an error of its own: `assert` is for tests and judges."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from .projects import Project

JUDGES = ("testing", "testing_network", "testing_transport", "fuzzing")
"""Modules and folders that judge what others make, and say so by `assert`."""


def check_assertions(projects: Mapping[str, Project]) -> Iterator[str]:
    """Yield a violation for each `assert` in src/, but for those of judges and docstrings."""
    for project in projects.values():
        for path in sorted(project.folder.glob("src/**/*.py")):
            if set(JUDGES).isdisjoint(path.relative_to(project.folder).with_suffix("").parts):
                for node in ast.walk(ast.parse(path.read_text())):
                    if isinstance(node, ast.Assert):
                        yield (
                            f"{path}:{node.lineno}: what cannot be is kept out by types, or is an "
                            f"error of errors.py; got assert {ast.unparse(node.test)}"
                        )
