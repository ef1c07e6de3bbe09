"""What the constraints know of a package: its pyproject.toml, read."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PREFIX = "meshwright-"


@dataclass(frozen=True, slots=True)
class Project:
    """One folder of packages/."""

    folder: Path
    version: str
    required: tuple[Requirement, ...]
    optional: tuple[tuple[str, Requirement], ...]
    """Requirements of extras, each with the extra's name."""
    development: tuple[Requirement, ...]
    """Requirements of dependency groups: for tests, never for src/."""

    @property
    def name(self) -> str:
        """Import name, which is the folder's."""
        return self.folder.name

    @property
    def released(self) -> tuple[Requirement, ...]:
        """What an installation can ask for: dependencies and extras."""
        return (*self.required, *(requirement for _, requirement in self.optional))


def load_projects(root: Path) -> dict[str, Project]:
    """Projects below `root`/packages by import name, sorted."""
    files = sorted(root.glob("packages/*/pyproject.toml"))
    return {file.parent.name: _load(file) for file in files}


def distribution(requirement: Requirement) -> str:
    """Name of the distribution, in the one spelling that can be compared."""
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
            if isinstance(text, str)  # else an include-group table, whose group is read anyway
        ),
    )
