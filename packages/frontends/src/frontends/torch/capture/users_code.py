"""Tells the user's code from torch's and Python's; which names it uses; which classes to watch.

Code of torch and of Python's library is not watched, but the objects that it gets are.
"""

from __future__ import annotations

import dis
import functools
import sys
import sysconfig
from pathlib import Path
from types import CodeType, ModuleType

import torch

from frontends.base.sources import OURS

_LIBRARY = str(Path(sysconfig.get_paths()["stdlib"]))
_SITE = str(Path(torch.__file__).parent.parent)
_LAYERS = str(Path(torch.nn.__file__).parent)
_NOT_THE_USERS = (
    *(str(Path(_SITE, name)) for name in ("torch", "numpy", "sympy", "mpmath", "networkx")),
    *(str(Path(_SITE, name)) for name in ("typing_extensions", "functorch", "torchgen")),
    *(str(Path(_SITE, name)) for name in ("_pytest", "pluggy")),  # which hook into imports
    OURS,
    "<frozen",
)
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that Python code made, and may change
_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
_WATCHED_OF_TORCH = ("torch.nn", "torch.optim", "torch.amp", "torch.utils.data", "torch.cuda.amp")
_WATCHED_OF_LIBRARY = ("argparse", "collections", "csv", "queue", "threading", "types", "weakref")


@functools.cache
def is_users(file: str) -> bool:
    """Return whether code is the user's, or a library's other than torch and Python's own."""
    if file.startswith(_NOT_THE_USERS):
        return False
    return not is_of_python(file)


def is_of_python(file: str) -> bool:
    """Return whether code belongs to Python's own library."""
    return file.startswith(_LIBRARY) and "site-packages" not in file


def is_of_layers(file: str) -> bool:
    """Return whether code belongs to torch's layers."""
    return file.startswith(_LAYERS)


def is_users_module(module: ModuleType | None) -> bool:
    """Return whether a module is the user's, or a library's other than torch and Python's own."""
    root = str(getattr(module, "__name__", "")).partition(".")[0]
    file = getattr(module, "__file__", None) or ""
    return is_users(file) and (root not in sys.stdlib_module_names or root == "__main__")


@functools.cache
def is_watched(kind: type) -> bool:
    """Return whether to watch attribute reads of a class's objects, which changes the class."""
    if kind.__flags__ & (_HEAP_TYPE | _IMMUTABLE) != _HEAP_TYPE or issubclass(
        kind, torch.Tensor | type | BaseException | Exception
    ):
        return False
    if getattr(kind, "_member_map_", None) is not None:  # an enum
        return False
    module = getattr(kind, "__module__", None) or ""
    if module.split(".")[0] == "torch":
        return module.startswith(_WATCHED_OF_TORCH)
    root = module.split(".")[0]
    if root in sys.stdlib_module_names and root != "__main__":
        return root in _WATCHED_OF_LIBRARY
    return root not in ("numpy", "sympy", "frontends", "_pytest", "pluggy")


@functools.cache
def names_of(code: CodeType) -> tuple[str, ...]:
    """Return the globals that a function names."""
    names = {
        instruction.argval: None
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    return tuple(names)


@functools.cache
def imports_of(code: CodeType) -> tuple[str, ...]:
    """Return the modules that a function imports."""
    names = {i.argval: None for i in dis.get_instructions(code) if i.opname == "IMPORT_NAME"}
    return tuple(names)
