"""The last word on errors: whatever comes up below, users see types of this package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from costmodel import UnknownDtypeError

from frontends.errors import FrontendsError, InternalError, PlanError, RunError

_OF_MEMORY = ("allocate memory", "out of memory", "RESOURCE_EXHAUSTED", "Unable to allocate")
"""What PyTorch, XLA and numpy say where there is none left."""


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Around what may fail in a framework, or here.

    Args:
        what: Is being done, for the message.

    Raises:
        PlanError: The cluster's device says nothing of a type that the step computes with.
        RunError: There is no memory left.
        InternalError: Something else than an error of this package came up.
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
    """Whether there was no memory left."""
    return isinstance(error, MemoryError) or any(word in str(error) for word in _OF_MEMORY)


def first_line(error: BaseException) -> str:
    """What an error says first."""
    lines = (line.strip().rstrip(".") for line in str(error).splitlines())
    return next(filter(None, lines), "it says nothing more")
