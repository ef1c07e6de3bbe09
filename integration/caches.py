"""Finds the caches and counters of a package: what lives as long as the process, and changes.

It reads the sources without importing them. It finds functions of modules and classes that
`functools` caches, names of modules and classes that hold containers which some code of the package
writes to, counters, weak containers, and names that functions assign as `global`. It does not find
what a function or an object keeps for itself, because that ends with the function or the object.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_CACHES = {"cache", "lru_cache"}
_CONTAINERS = {"dict", "list", "set", "bytearray", "deque", "defaultdict", "OrderedDict", "Counter"}
_CHANGING = {
    *("WeakKeyDictionary", "WeakValueDictionary", "WeakSet", "count", "cycle", "local"),
    *("ContextVar", "ThreadPoolExecutor", "ProcessPoolExecutor", "TrackedObjects"),
}
"""Types whose objects change without a method in `_WRITING`, or are made to be written to."""
_WRITING = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem"),
    *("popleft", "remove", "setdefault", "update"),
}
_STATIC = re.compile(r"^\s*(?:static|thread_local)\s+(?!const|inline)[^()]*[;={]", re.MULTILINE)


def caches_of(package: Path) -> set[str]:
    """The names of a package's caches, such as `autoshard.space.strategy_tables.column`.

    Args:
        package: The folder of the package, such as `packages/autoshard`.
    """
    files = {path: ast.parse(path.read_text()) for path in sorted(package.glob("src/**/*.py"))}
    written = {name for tree in files.values() for name in written_in(tree)}
    caches: set[str] = set()
    for path, tree in files.items():
        parts = path.relative_to(package / "src").with_suffix("").parts
        module = ".".join(part for part in parts if part != "__init__")
        caches |= {f"{module}.{name}" for name in caches_in(tree, written)}
    return caches | {
        f"{package.name}/{path.relative_to(package).as_posix()}"
        for path in package.glob("cpp/**/*.[ch]pp")
        if "tests" not in path.parts and _STATIC.search(path.read_text())
    }


def caches_in(tree: ast.Module, written: set[str]) -> Iterator[str]:
    """The names of a module's caches.

    Args:
        tree: The module.
        written: The names of the containers that some code writes to.
    """
    yield from _in_scope(tree.body, "", written)
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names


def _in_scope(body: list[ast.stmt], prefix: str, written: set[str]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _in_scope(node.body, f"{prefix}{node.name}.", written)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if any(_called(decorator) in _CACHES for decorator in node.decorator_list):
                yield prefix + node.name
        elif isinstance(node, ast.If | ast.Try | ast.With):
            inner = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)]
            yield from _in_scope(inner, prefix, written)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                name = ast.unparse(target)
                if _changes(node.value) or (name in written and _is_container(node.value)):
                    yield prefix + name


def _called(node: ast.expr) -> str:
    """The last part of a name, called or not: `lru_cache` of `functools.lru_cache(maxsize=1)`."""
    while isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _changes(value: ast.expr) -> bool:
    calls = [node for node in ast.walk(value) if isinstance(node, ast.Call)]
    return any(_called(call) in _CACHES | _CHANGING for call in calls)


def _is_container(value: ast.expr) -> bool:
    literals = ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp
    return isinstance(value, literals) or _called(value) in _CONTAINERS


def written_in(tree: ast.Module) -> Iterator[str]:
    """The names of all objects that the module writes to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            yield _called(node.value)
        elif isinstance(node, ast.AugAssign):
            yield _called(node.target)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _WRITING
        ):
            yield _called(node.func.value)
