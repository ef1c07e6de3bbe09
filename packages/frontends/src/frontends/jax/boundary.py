"""What users see of errors: types of this package, with their own line, and the cause beneath."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from costmodel import UnknownDtypeError

from frontends.errors import (
    FrontendsError,
    InternalError,
    NotFiniteError,
    PlanError,
    RunError,
    UnsupportedStepError,
)
from frontends.jax import _compat

_NO_VALUE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
"""What JAX raises where a program asks for the numbers of an array that is traced."""


_STATIC = "Non-hashable static arguments"
"""How JAX's error begins where a static argument of an inner `jit` is traced."""


class Traced:
    """A function of the user while it is traced: his own errors stay his own.

    Args:
        function: The step, or what makes its state.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._own: BaseException | None = None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function, and remember what it raises."""
        try:
            return self._function(*arguments, **named)
        except BaseException as error:
            self._own = error
            raise

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Around whatever calls this object.

        Raises:
            UnsupportedStepError: The function asks for numbers that are not known yet, or returns
                what is no array.
        """
        try:
            yield
        except _NO_VALUE as error:
            raise UnsupportedStepError(
                f"a step is traced: its arrays have no numbers yet when it is planned, as under "
                f"jax.jit; {_line_of(error)} asks for some ({_first_line(error)}): use jnp.where, "
                "lax.cond or lax.scan there, or give what chooses in static_argnums"
            ) from error
        except jax.errors.UnexpectedTracerError as error:
            raise of_an_earlier_trace(_line_of(error)) from error
        except Exception as error:
            if str(error).startswith(_STATIC) and "Tracer" in str(error):
                raise UnsupportedStepError(
                    "what is static for a function in jax.jit is static for the parallel step of "
                    "it, too: give parallelize the same static_argnums or static_argnames"
                ) from error
            if error is self._own or isinstance(error, FrontendsError):
                raise
            raise UnsupportedStepError(
                "a step takes and returns arrays, numbers and trees of them, as under jax.jit; "
                f"JAX says: {_first_line(error)}"
            ) from error


def of_an_earlier_trace(line: str) -> UnsupportedStepError:
    """The error of a step that keeps what it computes.

    Args:
        line: Where it uses it again.
    """
    return UnsupportedStepError(
        f"a step is traced, and what it computes is there only while it is; {line} uses an array "
        "of an earlier trace: return it from the step instead of keeping it outside"
    )


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Around what may fail in JAX, XLA or here.

    Args:
        what: Is being done, for the message.

    Raises:
        PlanError: The cluster's device says nothing of a type that the step computes with.
        InternalError: Something else than an error of this package came up.
    """
    try:
        yield
    except (FrontendsError, Warning):  # some ask for warnings as errors
        raise
    except UnknownDtypeError as error:
        raise PlanError(str(error)) from error
    except Exception as error:
        raise InternalError(
            f"{what} failed: {type(error).__name__}: {_first_line(error)}. Please report it, with "
            "the step; its cause is above"
        ) from error


def failure_of(program: str, error: Exception) -> FrontendsError:
    """What a compiled program's error is to the user.

    Args:
        program: Its phase and stage.
        error: That it raised: JAX was asked to look for numbers that are none, and there are some,
            or the device has no memory for it, or it was given what it cannot take.
    """
    if isinstance(error, FrontendsError):
        return error
    if _compat.is_of_numbers(error):
        return NotFiniteError(
            f"{program} made numbers that are not finite, which jax_debug_nans or jax_debug_infs "
            f"looks for ({_first_line(error)}): call the step's function itself under jax.jit to "
            "see in which operator"
        )
    return RunError(f"{program} failed: {type(error).__name__}: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "").strip().rstrip(".") or "it says nothing more"


def _line_of(error: BaseException) -> str:
    """The last line of the user's that an error went through."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if _compat.is_users(frame.filename) and frame.filename != __file__
    ]
    if not frames:
        return "the step"
    return f"{frames[-1].filename}:{frames[-1].lineno} ({frames[-1].name})"
