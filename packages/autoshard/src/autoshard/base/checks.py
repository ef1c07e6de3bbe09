"""Turns Python's own errors about wrong arguments into errors of this package that explain them."""

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
"""What Python raises for a shape that is not a shape, or for two shapes that do not match."""


def of_class(error: type[AutoshardError], name: str, value: object, of: type, how: str) -> None:
    """Raise `error` unless an argument is an instance of a class.

    Args:
        error: The class of the error to raise.
        name: The argument's name.
        value: The argument's value.
        of: The class that it must be an instance of.
        how: How a caller gets such an instance, for the message: "as Mesh((2, 4)) makes it".
    """
    if not isinstance(value, of):
        raise error(f"{name} must be of class {of.__name__}, {how}; got {name}={value!r}")


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """The function, but raising a `RuleError` with its arguments where they make it fail."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except AutoshardError:
            raise
        except _MISFITS as error:
            # binding raises Python's own TypeError if the call itself does not fit the signature
            bound = inspect.signature(function).bind(*args, **kwargs)
            arguments = ", ".join(f"{name}={value!r}" for name, value in bound.arguments.items())
            raise RuleError(
                f"{function.__name__} takes {inspect.signature(function)}; got {arguments}, which "
                f"raises {type(error).__name__}: {error}"
            ) from error

    return call
