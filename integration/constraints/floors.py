"""Each folder of a package is a floor: a module imports from its own floor and from lower ones.

So a reader who starts at what users call goes down through the folders, and no modules import each
other in a cycle. Every import counts, also those in functions and under `if TYPE_CHECKING`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from .imports import find_imports
from .projects import Project

# From the ground up: the folders of a package, the modules beside them, and `.` for `__init__`.
FLOORS = {
    "shardspec": "errors amounts base layout refine resharding remesh notation simulate report . "
    "cli testing",
    "costmodel": "errors base hardware time memory operators memory_bound measured profile "
    "calibrate report . cli testing",
    "pipesched": "errors base schedule judge generators simulation solver lower report . "
    "cli testing",
    "stagecut": "errors base placement layers slice branches plan models profiles . cli testing",
    "autoshard": "_core errors base graph rules space problem solvers answer picture shard "
    ". programs cli testing",
    "crossmesh": "_core errors base transfer search report run engines sync mpi torch jax "
    ". cli testing testing_geometry testing_network testing_simulate testing_sync "
    "testing_transport",
    "frontends": "errors base models step plan layers program price report answer search run jax "
    "torch . cli testing",
    "frontends.torch": "base rules capture trace lower run state api trainers . testing fuzzing",
    "frontends.jax": "base rules trace lower run state api . testing fuzzing",
}


def check_floors(projects: Mapping[str, Project]) -> Iterator[str]:
    """Yield a violation for each upward import, each cycle, and each module without a floor."""
    for root, floors in FLOORS.items():
        name = root.partition(".")[0]
        if name in projects:
            yield from _check(projects[name], root, floors.split())


def _check(project: Project, root: str, floors: list[str]) -> Iterator[str]:
    source = project.folder / "src"
    paths = [path for suffix in ("py", "pyi") for path in sorted(source.glob(f"**/*.{suffix}"))]
    modules = {_module(source, path): path for path in paths}
    height = {floor: index for index, floor in enumerate(floors)}
    public = _public(modules[root])
    imported: dict[str, set[str]] = {}
    for module, path in modules.items():
        own = _floor(module, root)
        if own and own not in height:
            yield f"{path}: a module is on a floor of {root} ({__file__}); got {own!r}"
            continue
        if own in public and path.name == "__init__.py" and module == f"{root}.{own}":
            yield f"{path}: no folder has the name of a public name; got {own!r}"
        imported[module] = set()
        for line, target in _targets(path, module, modules):
            imported[module].add(target)
            if own and height.get(_floor(target, root), 0) > height[own]:
                yield (
                    f"{path}:{line}: a module imports from its own floor and those below; "
                    f"{module} imports {target}"
                )
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        yield f"{project.folder}: modules do not import each other in a cycle; got {error.args[1]}"


def _targets(path: Path, module: str, modules: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The modules of the same package that a module imports, each with the line."""
    known = set(modules)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for found in find_imports(path.read_text(), package):
        children = [f"{found.module}.{name}" for name in found.names]
        targets = {child for child in children if child in known}
        if found.module in known and len(targets) < max(len(children), 1):
            targets.add(found.module)
        yield from ((found.line, target) for target in sorted(targets - {module}))


def _module(source: Path, path: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _floor(module: str, root: str) -> str:
    """The floor of a module below `root`.

    Empty for modules elsewhere, and for `__main__`, which may import everything.
    """
    if module == root:
        return "."
    if not module.startswith(f"{root}."):
        return ""
    name = module.removeprefix(f"{root}.").partition(".")[0]
    return "" if name == "__main__" else name


def _public(path: Path) -> set[str]:
    """The names in `__all__`."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()
