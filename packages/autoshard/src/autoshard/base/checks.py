"""Errors of ours for what is given from outside, where Python's own would say nothing of use."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from autoshard.errors import AutoshardError, RuleError

P = ParamSpec("P")
T = TypeVar("T")

_MISFITS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    StopIteration,
    TypeError,
    ValueError,
)
"""What Python says of a shape that is no shape, or of two that do not fit."""


def of_class(error: type[AutoshardError], name: str, given: object, of: type, how: str) -> None:
    """Refuse what is not of a class.

    Args:
        error: To raise.
        name: Of the argument.
        given: Its value.
        of: The class.
        how: One comes by such an object.
    """
    if not isinstance(given, of):
        raise error(f"{name} is of the class {of.__name__}, {how}; got {name}={given!r}")


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """The function, with a `RuleError` for arguments that it can make nothing of."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except AutoshardError:
            raise
        except _MISFITS as error:
            bound = inspect.signature(function).bind(*args, **kwargs)  # else it is the call
            given = ", ".join(f"{name}={value!r}" for name, value in bound.arguments.items())
            raise RuleError(
                f"{function.__name__} takes {inspect.signature(function)}; got {given}, with which "
                f"there is a {type(error).__name__}: {error}"
            ) from error

    return call
