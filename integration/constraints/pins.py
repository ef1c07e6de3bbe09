"""Every requirement on another package of this repository admits the package's version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .projects import PREFIX, Project, distribution


def check_pins(projects: Mapping[str, Project]) -> Iterator[str]:
    """Yield a violation for each requirement that does not admit the present version."""
    for project in projects.values():
        for requirement in (*project.released, *project.development):
            name = distribution(requirement)
            if not name.startswith(PREFIX):
                continue
            sibling = projects.get(name.removeprefix(PREFIX))
            where = f"{project.folder}/pyproject.toml"
            if sibling is None:
                yield f"{where}: a {PREFIX}* requirement names a folder of packages/; got {name}"
            elif not requirement.specifier.contains(sibling.version, prereleases=True):
                yield (
                    f"{where}: a pin admits the sibling's current version; "
                    f"{requirement} does not admit {sibling.version}; adapt to it and move the pin"
                )
