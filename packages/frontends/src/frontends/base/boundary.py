"""Turn any exception into an error type of this package before users see it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from costmodel import UnknownDtypeError

from frontends.errors import FrontendsError, InternalError, PlanError, RunError

_OF_MEMORY = ("allocate memory", "out of memory", "RESOURCE_EXHAUSTED", "Unable to allocate")
"""Phrases of PyTorch, XLA and numpy in errors that mean: no memory is left."""


@contextmanager
def doing(what: str) -> Iterator[None]:
    """A context that turns foreign exceptions into errors of this package.

    Args:
        what: The activity inside the context, for the message.

    Raises:
        PlanError: The cluster's device states no rate for a type that the step computes with.
        RunError: No memory is left.
        InternalError: Any other exception that is not an error of this package.
    """
    try:
        yield
    except (FrontendsError, Warning):  # some ask for warnings as errors
        raise
    except UnknownDtypeError as error:
        raise PlanError(str(error)) from error
    except Exception as error:
        said = f"{what} failed: {type(error).__name__}: {first_line(error)}"
        if is_of_memory(error):
            raise RunError(f"{said}: this process has no more memory") from error
        raise InternalError(
            f"{said}. Please report it, with the step; its cause is above"
        ) from error


def is_of_memory(error: BaseException) -> bool:
    """Whether the error says that no memory was left."""
    return isinstance(error, MemoryError) or any(word in str(error) for word in _OF_MEMORY)


def first_line(error: BaseException) -> str:
    """The first line of an error's message that is not empty."""
    lines = (line.strip().rstrip(".") for line in str(error).splitlines())
    return next(filter(None, lines), "it says nothing more")
