"""Errors of failed operators: which operator, called on which line, in which stage, on what."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from frontends.base.boundary import first_line
from frontends.errors import FrontendsError, StepError, UnsupportedStepError
from frontends.torch.base.origins import Origin

Kinds = Callable[[str], tuple[Sequence[int], object]]
"""From the name of a value to its shape and type."""

Made = Mapping[str, tuple[Sequence[str], Origin | None]]
"""By the name of a value: the names of what it is computed from, and where it is computed."""

_NAMED = 4
"""The largest number of operands that a message names."""


def failure(
    operator: str,
    origin: Origin | None,
    values: Sequence[str],
    where: str,
    error: BaseException,
    stage: int | None = None,
) -> StepError:
    """Return the error to raise for an operator that failed while a step ran.

    Args:
        operator: The operator's name in torch.
        origin: Where the user called it.
        values: Its operands, as `described` writes them.
        where: At which point of the step it ran, such as the stage.
        error: The exception that the operator raised.
        stage: The stage's number.
    """
    at = "" if origin is None else f", {origin}"
    return StepError(
        f"operators of a step run on every device as they do on one; {operator}{at}, fails "
        f"{where}, {_on(values)}: {type(error).__name__}: {first_line(error)}",
        operator=operator,
        line=None if origin is None else origin.lines,
        stage=stage,
        values=tuple(values),
        number=0 if origin is None else origin.number,
    )


def described(
    names: Sequence[str], kinds: Kinds, made: Made, origin: Origin | None = None
) -> list[str]:
    """Describe each value as `batch['x'] float32[4, 8]`.

    A value that the step computes gets a suffix: the batch's tensors that it follows from, if it
    follows from these alone, else the line that computes it.

    Args:
        names: Paths of arguments, or the names that values have in the program.
        kinds: Gives the shape and type of a value.
        made: By value, what it is computed from and where.
        origin: The operator that reads the values; its line is not repeated.
    """
    texts = []
    for name in names:
        shape, dtype = kinds(name)
        text = f"{name} {str(dtype).removeprefix('torch.')}{list(shape)}"
        if name in made:
            arguments, (_, at) = _arguments(name, made), made[name]
            if all(argument.startswith("batch") for argument in arguments):
                text += f" (of {', '.join(arguments)})" if arguments else ""
            elif at is not None and at != origin:
                text += f" (made {at})"
        texts.append(text)
    return texts


def _arguments(name: str, made: Made) -> list[str]:
    """Return the names of the arguments that a value follows from, sorted."""
    seen, work = {name}, [name]
    arguments = []
    while work:
        now = work.pop()
        if now not in made:
            arguments.append(now)
            continue
        new = [other for other in made[now][0] if other not in seen]
        seen.update(new)
        work += new
    return sorted(arguments)


@contextmanager
def planning(
    operator: torch._ops.OpOverload, origin: Origin | None, values: Callable[[], Sequence[str]]
) -> Iterator[None]:
    """Turn exceptions of the planner about one operator into an error that names the operator.

    Raises:
        UnsupportedStepError: The code inside the `with` failed: it does not know such a call.
    """
    try:
        yield
    except FrontendsError:
        raise
    except Exception as error:
        at = "" if origin is None else f", {origin}"
        raise UnsupportedStepError(
            f"a step is planned by what is known of its operators; {operator}{at}, cannot be "
            f"planned {_on(values())}: {type(error).__name__}: {first_line(error)}"
        ) from error


def _on(values: Sequence[str]) -> str:
    more = [f"{len(values) - _NAMED} more"] if len(values) > _NAMED else []
    named = [*values[:_NAMED], *more]
    if not named:
        return "on no operands"
    return "on " + " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))
