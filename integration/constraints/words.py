"""Each word means one thing in all packages; `docs/glossary.md` defines it, under its package.

This check reads the tables of the glossary. A row that begins with a **word** names classes and
functions of the package that the table is about, and these have to exist. A row that begins with a
`Name` is a class that several places define, and lists all of them. Any other public class is
defined only once in all packages. A type that a package exports and that is not a class (`Order =
Literal[...]`) counts as a class, too.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .projects import Project

GLOSSARY = Path("docs/glossary.md")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the glossary: a word, and the names in the code that it stands for."""

    line: int
    package: str
    """The heading above the row."""
    word: str
    """The word as it is written: bold, or as code for a class that several places define."""
    names: tuple[str, ...]

    @property
    def shared(self) -> str:
        """The class that several places define; empty in the row of a word."""
        return self.word.strip("`") if self.word.startswith("`") else ""


def check_words(projects: Mapping[str, Project], root: Path) -> Iterator[str]:
    """Yield a violation for each name that the code lacks, and for each with two meanings."""
    path = root / GLOSSARY
    rows = list(_rows(path.read_text()))
    trees = {name: tree for project in projects.values() for name, tree in _trees(project)}
    for word, count in Counter(row.word for row in rows).items():
        if count > 1:
            yield f"{path}: a word is explained once; got {word} {count} times"
    for row in rows:
        if not row.shared:
            yield from (f"{path}:{row.line}: {text}" for text in _misnamed(row, trees))
    places = {row.shared: row.names for row in rows if row.shared}
    definitions = defaultdict(list)
    for module, tree in trees.items():
        exported = _exported(trees.get(module.partition(".")[0]))
        for name in _classes(tree, exported):
            definitions[name].append(module)
    for name in sorted({*definitions, *places}):
        for text in _two_meanings(name, definitions[name], places.get(name, ())):
            yield f"{path}: {text}"


def _rows(text: str) -> Iterator[Row]:
    package = ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("## "):
            package = line.removeprefix("## ").strip("` ")
        elif line.startswith(("| **", "| `")):
            word, *_, where = (cell.strip() for cell in line.strip("| ").split(" | "))
            yield Row(number, package, word, tuple(re.findall(r"`([\w.]+)`", where)))


def _misnamed(row: Row, trees: Mapping[str, ast.Module]) -> Iterator[str]:
    if not row.names:
        yield f"a word names its class or function in the code; {row.word} names none"
    for name in row.names:
        module, _, last = name.rpartition(".")
        if name.partition(".")[0] != row.package:
            yield f"a word is under the package that defines it; got {name} under {row.package}"
        elif module not in trees or last not in _names(trees[module]):
            yield f"a name in the glossary is defined or exported by its module; got {name}"


def _two_meanings(name: str, modules: Sequence[str], places: Sequence[str]) -> Iterator[str]:
    """The violations of one class name: `modules` define it, and its row lists `places`."""
    if places:
        of = {place: [each for each in modules if _is_in(each, place)] for place in places}
        if sorted(each for found in of.values() for each in found) != sorted(modules) or any(
            len(found) != 1 for found in of.values()
        ):
            yield (
                f"a shared class is defined once in each place that its row lists, and nowhere "
                f"else; {name} is in {', '.join(modules) or 'none'}"
            )
    elif len(modules) > 1:
        yield (
            f"no two public classes have the same name, unless a row of the glossary says what "
            f"they share; {name} is in {', '.join(modules)}"
        )


def _is_in(module: str, place: str) -> bool:
    return f"{module}.".startswith(f"{place}.")


def _trees(project: Project) -> Iterator[tuple[str, ast.Module]]:
    source = project.folder / "src"
    for path in sorted(source.glob("**/*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield name, ast.parse(path.read_text())


def _classes(tree: ast.Module, exported: Collection[str]) -> Iterator[str]:
    """The public classes of a module, and its other types that the package exports."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name
        elif isinstance(node, ast.Assign):
            name = ast.unparse(node.targets[0])
            if name in exported and name[0].isupper() and not name.isupper():
                yield name


def _exported(tree: ast.Module | None) -> set[str]:
    """The names in `__all__`."""
    for node in tree.body if tree else ():
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def _names(tree: ast.Module) -> set[str]:
    """The names that a module defines or exports."""
    names = _exported(tree)
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.add(ast.unparse(node.targets[0]))
    return names
