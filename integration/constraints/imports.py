"""Imports follow the architecture, take public names only, and are declared in pyproject.toml."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from .projects import PREFIX, Project, distribution

# The packages and frameworks that each package may use (docs/architecture.md).
FRAMEWORKS = frozenset({"jax", "torch", "mpi4py"})
MAY_USE = {
    "shardspec": frozenset({"jax", "torch"}),
    "costmodel": frozenset({"shardspec"}) | FRAMEWORKS,  # its calibration measures them
    "autoshard": frozenset({"shardspec", "costmodel"}),
    "stagecut": frozenset({"shardspec", "costmodel"}),
    "crossmesh": frozenset({"shardspec"}) | FRAMEWORKS,
    "pipesched": frozenset(),
}
MAY_USE["frontends"] = frozenset(MAY_USE) | FRAMEWORKS

# The module that conftest.py in the root makes importable for all tests.
SHARED = "launching"

# Distributions whose import name differs.
DISTRIBUTIONS = {"PIL": "pillow", "orbax": "orbax-checkpoint", "yaml": "pyyaml"}


@dataclass(frozen=True, slots=True)
class Import:
    """One target of an import statement, with the absolute name of its module."""

    line: int
    module: str
    names: tuple[str, ...]
    deferred: bool
    """Whether it is in a function or under `if TYPE_CHECKING`, so that importing the file does not
    run it."""

    @property
    def top(self) -> str:
        """The first component of the module's name."""
        return self.module.partition(".")[0]

    @property
    def private(self) -> bool:
        """Whether it names something that starts with a single underscore."""
        parts = [*self.module.split("."), *self.names]
        return any(part[0] == "_" and part[:2] != "__" for part in parts)


def check_imports(projects: Mapping[str, Project]) -> Iterator[str]:
    """Yield a violation for each import and each declared requirement that a rule forbids."""
    for project in projects.values():
        if project.name not in MAY_USE:
            yield f"{project.folder}: a package has a row in MAY_USE ({__file__}); got none"
            continue
        yield from _check_declared(project)
        loaded = _loaded_with(project)
        for folder in ("src", "tests", "benchmarks"):
            for path in sorted(project.folder.glob(f"{folder}/**/*.py")):
                for item in find_imports(path.read_text()):
                    if rule := _broken_rule(project, folder, path, item, path in loaded):
                        yield f"{path}:{item.line}: {rule}"


def find_imports(source: str, package: str = "") -> list[Import]:
    """The imports of a Python source in order; relative ones only if `package` is given."""
    imports: list[Import] = []

    def visit(node: ast.AST, deferred: bool) -> None:
        if isinstance(node, ast.Import):
            imports.extend(Import(node.lineno, alias.name, (), deferred) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (package or not node.level):
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*base, node.module] if node.module else base)
            names = tuple(alias.name for alias in node.names)
            imports.append(Import(node.lineno, module, names, deferred))
        inside = deferred or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            inside = True
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(ast.parse(source), False)
    return imports


def _loaded_with(project: Project) -> set[Path]:
    """The files of src/ that are executed when the package is imported or run with -m."""
    source = project.folder / "src"
    files = {}
    for path in source.glob("**/*.py"):
        parts = path.relative_to(source).with_suffix("").parts
        files[".".join(parts[:-1] if path.stem == "__init__" else parts)] = path
    todo = [name for name in (project.name, f"{project.name}.__main__") if name in files]
    for name in todo:
        package = name if files[name].stem == "__init__" else name.rpartition(".")[0]
        for item in find_imports(files[name].read_text(), package):
            steps = item.module.split(".")
            targets = [".".join(steps[:length]) for length in range(1, len(steps) + 1)]
            targets += [f"{item.module}.{child}" for child in item.names]
            if not item.deferred:
                todo += [target for target in targets if target in files and target not in todo]
    return {files[name] for name in todo}


def _check_declared(project: Project) -> Iterator[str]:
    for name in map(distribution, project.released):
        used = name.removeprefix(PREFIX)
        known = used in MAY_USE if name.startswith(PREFIX) else used in FRAMEWORKS
        if known and used not in MAY_USE[project.name] | {project.name}:
            yield f"{project.folder}/pyproject.toml: {_arrow(project, used)}"


def _broken_rule(
    project: Project, folder: str, path: Path, item: Import, loaded: bool
) -> str | None:
    top = item.top
    if top in sys.stdlib_module_names or top == project.name:
        return None
    if top in MAY_USE and item.private:
        names = " ".join((item.module, *item.names))
        return f"a package uses public names of others; got {names}; make public what is needed"
    if folder == "benchmarks":
        return None  # they may compare with any library, and run with everything installed
    beside = [path.parent / top, path.parent / f"{top}.py", path.parent.parent / top]
    if folder == "tests" and any(helper.exists() for helper in beside):
        return None  # a helper beside the test, or the folder of helpers that it is in
    if folder == "tests" and top == SHARED:
        return None
    if top in MAY_USE.keys() | FRAMEWORKS and top not in MAY_USE[project.name]:
        return _arrow(project, top)
    wanted = PREFIX + top if top in MAY_USE else canonicalize_name(DISTRIBUTIONS.get(top, top))
    if wanted in map(distribution, project.required):
        return None
    extras = [extra for extra, needed in project.optional if distribution(needed) == wanted]
    if folder == "src" and extras and loaded and not item.deferred:
        return (
            f"a package imports without its extras; got {item.module} of extra "
            f"{extras[0]!r} at the top of a file that importing {project.name} loads; "
            f"import it in the function that needs it"
        )
    if extras or (folder == "tests" and wanted in map(distribution, project.development)):
        return None
    return f"an import is declared in pyproject.toml; got {item.module}; declare {wanted}"


def _arrow(project: Project, used: str) -> str:
    allowed = ", ".join(sorted(MAY_USE[project.name])) or "no sibling and no framework"
    return f"{project.name} may use {allowed} (docs/architecture.md); got {used}"
