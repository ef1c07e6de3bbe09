"""Errors that say why a step cannot be captured, at which line, and what to do about it."""

from __future__ import annotations

import contextlib
import pickle
import random
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np

from frontends.errors import FrontendsError, UnsupportedStepError
from frontends.torch.base import origins
from frontends.torch.base.compat.values import DATA_DEPENDENT, DATA_DEPENDENT_SHAPES

_WAYS_OUT = {
    "layerdrop": "layers are left out at random there: set the configuration's layerdrop (or "
    "encoder_layerdrop and decoder_layerdrop) to 0",
    "expert_hit": "experts that have tokens are run there one by one: call "
    'model.set_experts_implementation("grouped_mm") where the model knows it, or run each expert '
    "for all tokens, with a weight of 0 for those of others",
    "linear_sum_assignment": "outputs are matched with labels there: match them before the step, "
    "in a forward pass of its own, and put the pairs into the batch",
    "epsilon = np.random.rand": "parts of the input are masked at random there: set the "
    "configuration's apply_spec_augment to False, or pass the mask to the step",
    "np.random.permutation": "blocks are chosen at random there: set the configuration's "
    'attention_type to "original_full", or draw before the step',
}
"""Ways out for models of libraries, by a word of the line that cannot be captured."""


_drawn_at: ContextVar[list[str]] = ContextVar("lines that draw random numbers without torch")


def note_draw() -> None:
    """Record the line that draws random numbers, for the message if the capture is refused."""
    lines = _drawn_at.get([])
    if not lines:
        lines.append(origins.calling_line())


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Inside, a step is captured; explain errors.

    An exception that the user's own code raises is passed on: it would be raised on one device,
    too.

    Raises:
        UnsupportedStepError: The step cannot be captured.
    """
    before = _states()
    noted = _drawn_at.set([])
    try:
        yield
        if drawn := _drawn(before):
            raise _of_draws(drawn)
    except BaseException as error:
        drawn = _drawn(before)
        _restore(before)
        refusal = _explanation(error)
        if refusal is None:
            raise
        raise _of_draws(drawn) if drawn else refusal from error
    finally:
        _drawn_at.reset(noted)


def _drawn(before: dict[str, Any]) -> list[str]:
    return [name for name, state in _states().items() if state != before[name]]


def _of_draws(drawn: list[str]) -> UnsupportedStepError:
    rule = (
        "random numbers of a step are drawn by torch, which draws new ones in every step; this one "
        f"draws by {' and '.join(drawn)}, and would get those of its capture again and again"
    )
    way_out = "take torch.rand, or draw them before the step and put them into the batch"
    lines = _drawn_at.get()
    if not lines:
        return UnsupportedStepError(f"{rule}: {way_out}")
    return refusal_at(rule, lines[0], way_out)


def _explanation(error: BaseException) -> UnsupportedStepError | None:
    """Return the error to raise instead; None if this one says enough itself."""
    if isinstance(error, DATA_DEPENDENT_SHAPES):
        return _refusal(
            "shapes of tensors in a step that is planned do not depend on values; this one makes a "
            "tensor whose shape does",
            error,
            "keep the shape and mask the elements to ignore, as torch.where does",
        )
    if isinstance(error, DATA_DEPENDENT):
        return _refusal(
            "a step that is planned must run the same operators whatever its values are; this one "
            "asks for a number that is not known before it runs",
            error,
            "compute with tensors there, as torch.where does",
        )
    is_ours = isinstance(error, FrontendsError)
    is_end = not isinstance(error, Exception) or isinstance(error, StopIteration | Warning)
    library = type(error).__module__.split(".")[0]
    if origins.is_raised_by_user(error):
        return None
    if is_ours or is_end or library not in ("builtins", "torch", "numpy", "sympy"):
        return None
    if isinstance(error.__cause__, FrontendsError):
        return _explanation(error.__cause__)
    return _refusal(
        "a step is traced on tensors that have shapes and types but no values; this one fails then",
        error,
        f"{type(error).__name__}: {error}",
    )


def _refusal(rule: str, error: BaseException, way_out: str) -> UnsupportedStepError:
    origin = getattr(error, "origin", None)  # backward, which is not called by the user's code
    return refusal_at(rule, origin.lines if origin else origins.user_line(error), way_out)


def refusal_at(rule: str, line: str, way_out: str) -> UnsupportedStepError:
    """Return the error for a line of code; some lines of libraries have a better way out."""
    known = (way for word, way in _WAYS_OUT.items() if word in line)
    return UnsupportedStepError(f"{rule}, at {line}: {next(known, way_out)}")


def _states() -> dict[str, Any]:
    """Return the states of the random number generators whose draws a capture does not see."""
    return {
        "Python's random": random.getstate(),
        "numpy.random": pickle.dumps(np.random.get_state(legacy=False)),
    }


def _restore(states: dict[str, Any]) -> None:
    """Reset the generators."""
    random.setstate(states["Python's random"])
    np.random.set_state(pickle.loads(states["numpy.random"]))
