"""Reads and writes layouts in the notations of frameworks: `parse(text)`, `dump(layout)`."""

from importlib import import_module
from types import ModuleType

from shardspec.errors import NotationError

__all__ = ["NOTATIONS", "notation"]

NOTATIONS: tuple[str, ...] = ("alpa", "sbp", "hlo", "shardy", "jax", "torch")
"""Names of the notations; each is a module of this package."""


def notation(name: str) -> ModuleType:
    """The module of a notation, with `parse` and `dump`; loaded when it is first needed.

    Raises:
        NotationError: there is no such notation.

    Examples:
        >>> notation("hlo").__name__
        'shardspec.notation.hlo'
    """
    if name not in NOTATIONS:
        raise NotationError(f"a notation is one of {NOTATIONS}; got {name!r}")
    return import_module(f".{name}", __name__)
