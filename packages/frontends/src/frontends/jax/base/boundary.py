"""Turns JAX's errors into errors of this package, which name the user's line and keep the cause."""

from __future__ import annotations

import dis
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax

from frontends.base.boundary import first_line
from frontends.base.sources import whose
from frontends.errors import FrontendsError, NotFiniteError, RunError, UnsupportedStepError
from frontends.jax.base import _compat

_NO_VALUE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
"""What JAX raises where a program asks for the values of an array that is being traced."""


_STATIC = "Non-hashable static arguments"
"""How JAX's error begins if a static argument of an inner `jit` is being traced."""


class Traced:
    """A user's function while it is traced. Errors that the user's own code raises stay unchanged.

    Args:
        function: The step, or the function that makes its state.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._raised: BaseException | None = None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function, and remember what it raises."""
        try:
            return self._function(*arguments, **named)
        except BaseException as error:
            self._raised = error
            raise

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Context in which this object may be traced; it turns JAX's errors into this package's.

        Raises:
            UnsupportedStepError: The function asks for values that are not known yet, or returns
                something other than arrays.
        """
        try:
            yield
        except _NO_VALUE as error:
            raise UnsupportedStepError(
                "a step is traced to be planned, so its arrays have no values yet, as under "
                f"jax.jit; {_line_of(error)} asks for some ({first_line(error)}): use jnp.where, "
                "lax.cond or lax.scan there, or list the argument that decides in static_argnums"
            ) from error
        except jax.errors.UnexpectedTracerError as error:
            raise of_an_earlier_trace(_line_of(error)) from error
        except Exception as error:
            if str(error).startswith(_STATIC) and "Tracer" in str(error):
                raise UnsupportedStepError(
                    "an argument that is static in a jax.jit inside the step must be static for "
                    "the parallel step, too: give parallelize the same static_argnums or "
                    "static_argnames"
                ) from error
            if isinstance(error, FrontendsError | Warning):
                raise
            if error is self._raised:
                if _is_raised_by_others(error):
                    raise
                raise UnsupportedStepError(
                    "a step is traced on arrays that have shapes and dtypes but no values, as "
                    f"under jax.jit; this one fails at {_line_of(error)}: "
                    f"{type(error).__name__}: {first_line(error)}"
                ) from error
            raise UnsupportedStepError(
                "a step takes and returns arrays, numbers and trees of them, as under jax.jit; "
                f"JAX says: {first_line(error)}"
            ) from error


def of_an_earlier_trace(line: str) -> UnsupportedStepError:
    """The error of a step that keeps an array outside of itself and uses it in a later trace.

    Args:
        line: The line that uses the array again.
    """
    return UnsupportedStepError(
        f"an array that a step computes while it is traced cannot be used afterwards; {line} uses "
        "an array of an earlier trace: return it from the step instead of keeping it outside"
    )


@contextmanager
def computing_early(reads: Sequence[str]) -> Iterator[None]:
    """Context for what is computed on the whole batch before the first microbatch.

    Args:
        reads: Names of the arguments that it is computed from.

    Raises:
        NotFiniteError: Some numbers are not finite, and JAX was asked to look for such numbers.
        RunError: The computation fails for another reason.
    """
    try:
        yield
    except Exception as error:
        what = f"what is computed from {', '.join(reads) or 'nothing'} before the first microbatch"
        if _compat.is_of_numbers(error):
            raise NotFiniteError(
                f"{what} has numbers that are not finite, which jax_debug_nans or jax_debug_infs "
                f"looks for ({first_line(error)})"
            ) from error
        raise RunError(f"{what} failed: {type(error).__name__}: {first_line(error)}") from error


@contextmanager
def planning(equation: _compat.JaxprEqn, names: Sequence[str]) -> Iterator[None]:
    """Context in which the rule and the cost of an equation are asked for.

    Args:
        equation: An equation of the step.
        names: The names of its operands.

    Raises:
        UnsupportedStepError: The equation has a form that its rule does not know.
    """
    try:
        yield
    except FrontendsError:
        raise
    except Exception as error:
        raise UnsupportedStepError(
            f"a step is planned by what is known of its operators; {equation.primitive.name}, at "
            f"{_compat.line_of(equation)}, cannot be planned on {', '.join(names) or 'nothing'}: "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error


def _line_of(error: BaseException) -> str:
    """The innermost line of the user that an error passed through, with the library's inside it."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return _compat.user_line((f.filename, f.lineno or 0, f.name) for f in frames) or "the step"


def _is_raised_by_others(error: BaseException) -> bool:
    """Whether the error comes from a `raise` or `assert` in the code of a user or a library."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or whose(last.tb_frame.f_code.co_filename) == "nobody's":
        return False
    code = last.tb_frame.f_code
    return dis.opname[code.co_code[last.tb_lasti]] == "RAISE_VARARGS"
