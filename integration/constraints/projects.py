"""The pyproject.toml of each package, as the checks need it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PREFIX = "meshwright-"


@dataclass(frozen=True, slots=True)
class Project:
    """A package: one folder of packages/."""

    folder: Path
    version: str
    required: tuple[Requirement, ...]
    optional: tuple[tuple[str, Requirement], ...]
    """The requirements of extras, each with the name of the extra."""
    development: tuple[Requirement, ...]
    """The requirements of dependency groups, which are for tests and never for src/."""

    @property
    def name(self) -> str:
        """The import name, which is also the name of the folder."""
        return self.folder.name

    @property
    def released(self) -> tuple[Requirement, ...]:
        """The requirements of dependencies and extras, which an installation can ask for."""
        return (*self.required, *(requirement for _, requirement in self.optional))


def load_projects(root: Path) -> dict[str, Project]:
    """The projects below `root`/packages, by import name and sorted."""
    files = sorted(root.glob("packages/*/pyproject.toml"))
    return {file.parent.name: _load(file) for file in files}


def distribution(requirement: Requirement) -> str:
    """The name of the distribution in its canonical spelling."""
    return canonicalize_name(requirement.name)


def _load(file: Path) -> Project:
    table = tomllib.loads(file.read_text())
    project = table["project"]
    extras = project.get("optional-dependencies", {})
    groups = table.get("dependency-groups", {})
    return Project(
        folder=file.parent,
        version=project["version"],
        required=tuple(map(Requirement, project.get("dependencies", ()))),
        optional=tuple((extra, Requirement(text)) for extra in extras for text in extras[extra]),
        development=tuple(
            Requirement(text)
            for group in groups.values()
            for text in group
            if isinstance(text, str)  # skip include-group tables: all groups are read anyway
        ),
    )
