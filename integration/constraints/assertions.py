"""`assert` is for tests and checkers; the checks of a package at runtime raise its own errors."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from .projects import Project

JUDGES = ("testing", "testing_network", "testing_transport", "fuzzing")
"""Modules and folders that check results of others, and report by `assert`."""


def check_assertions(projects: Mapping[str, Project]) -> Iterator[str]:
    """Yield a violation for each `assert` in src/, except in checkers and docstrings."""
    for project in projects.values():
        for path in sorted(project.folder.glob("src/**/*.py")):
            if set(JUDGES).isdisjoint(path.relative_to(project.folder).with_suffix("").parts):
                for node in ast.walk(ast.parse(path.read_text())):
                    if isinstance(node, ast.Assert):
                        yield (
                            f"{path}:{node.lineno}: an impossible state is excluded by types or "
                            f"raises an error of errors.py; got assert {ast.unparse(node.test)}"
                        )
