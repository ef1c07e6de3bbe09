"""What users see of errors: types of this package, with their own line, and the cause beneath."""

from __future__ import annotations

import dis
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax

from frontends.base.boundary import first_line
from frontends.base.sources import shown, whose
from frontends.errors import FrontendsError, NotFiniteError, RunError, UnsupportedStepError
from frontends.jax.base import _compat

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
                f"jax.jit; {_line_of(error)} asks for some ({first_line(error)}): use jnp.where, "
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
            if isinstance(error, FrontendsError | Warning):
                raise
            if error is self._own:
                if _is_raised_by_others(error):
                    raise
                raise UnsupportedStepError(
                    "a step is traced on arrays that have shapes and types but no numbers, as "
                    f"under jax.jit; this one fails so, at {_line_of(error)}: "
                    f"{type(error).__name__}: {first_line(error)}"
                ) from error
            raise UnsupportedStepError(
                "a step takes and returns arrays, numbers and trees of them, as under jax.jit; "
                f"JAX says: {first_line(error)}"
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
def computing_early(reads: Sequence[str]) -> Iterator[None]:
    """Around what is computed on the whole batch, before the first microbatch.

    Args:
        reads: Names of the arguments that it is computed from.

    Raises:
        NotFiniteError: Some numbers are not finite, and JAX was asked to look for such.
        RunError: It fails otherwise.
    """
    try:
        yield
    except Exception as error:
        what = f"what is computed of {', '.join(reads) or 'nothing'} before the first microbatch"
        if _compat.is_of_numbers(error):
            raise NotFiniteError(
                f"{what} has numbers that are not finite, which jax_debug_nans or jax_debug_infs "
                f"looks for ({first_line(error)})"
            ) from error
        raise RunError(f"{what} failed: {type(error).__name__}: {first_line(error)}") from error


@contextmanager
def planning(equation: _compat.JaxprEqn, names: Sequence[str]) -> Iterator[None]:
    """Around what is made of an equation before the step runs.

    Args:
        equation: Of the step.
        names: Of its operands.

    Raises:
        UnsupportedStepError: Its form is one that nothing is known of.
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
    """The last line of the user's that an error went through, and the library's inside of it."""
    of_library = None
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        kind, line = whose(frame.filename), shown(frame.filename, frame.lineno or 0, frame.name)
        if kind == "the user's":
            return line if of_library is None else f"{line}, in {of_library}"
        if kind == "a library's":
            of_library = of_library or line
    return of_library or "the step"


def _is_raised_by_others(error: BaseException) -> bool:
    """Whether code that is not JAX's says `raise` or `assert` where an error comes from."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or whose(last.tb_frame.f_code.co_filename) == "nobody's":
        return False
    code = last.tb_frame.f_code
    return dis.opname[code.co_code[last.tb_lasti]] == "RAISE_VARARGS"
