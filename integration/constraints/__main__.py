"""Checks the repository that this folder is in: `python integration/constraints`."""

import os
import sys
from pathlib import Path

if not __package__:  # run by the name of the folder: make `import constraints` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from constraints.assertions import check_assertions
from constraints.changelog import check_changelog
from constraints.floors import check_floors
from constraints.imports import check_imports
from constraints.pins import check_pins
from constraints.projects import load_projects
from constraints.words import check_words

if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parents[2])
    projects = load_projects(Path())
    checks = (
        check_pins(projects),
        check_imports(projects),
        check_floors(projects),
        check_assertions(projects),
        check_words(projects, Path()),
        check_changelog(projects, Path()),
    )
    violations = [violation for check in checks for violation in check]
    print(*violations, sep="\n", end="\n" if violations else "")
    print(f"{len(projects)} packages, {len(violations)} violations")
    sys.exit(bool(violations))
