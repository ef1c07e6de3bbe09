"""Errors of operators: which one failed, where the user called it, in which stage, on what."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from frontends.base.boundary import first_line
from frontends.errors import FrontendsError, StepError, UnsupportedStepError
from frontends.torch.base.origins import Origin

Kinds = Callable[[str], tuple[Sequence[int], object]]

Made = Mapping[str, tuple[Sequence[str], Origin | None]]

_NAMED = 4
"""How many operands a message names."""


def failure(
    operator: str,
    origin: Origin | None,
    values: Sequence[str],
    where: str,
    error: BaseException,
    stage: int | None = None,
) -> StepError:
    """The error of an operator that fails while a step runs.

    Args:
        operator: As torch calls it.
        origin: Where the user called it.
        values: What it reads, each described.
        where: In the step, such as the stage.
        error: That it raised.
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
    """Values as `batch['x'] float32[4, 8]`; of what the step makes also out of what, or where.

    Args:
        names: Paths of arguments, or the names that values have in the program.
        kinds: Shape and type of a value.
        made: By value, what it is made of and where.
        origin: Of the operator that reads them, which need not be said again.
    """
    found = []
    for name in names:
        shape, dtype = kinds(name)
        text = f"{name} {str(dtype).removeprefix('torch.')}{list(shape)}"
        if name in made:
            arguments, (_, at) = _arguments(name, made), made[name]
            if all(argument.startswith("batch") for argument in arguments):
                text += f" (of {', '.join(arguments)})" if arguments else ""
            elif at is not None and at != origin:
                text += f" (made {at})"
        found.append(text)
    return found


def _arguments(name: str, made: Made) -> list[str]:
    """What a value follows from."""
    seen, work = {name}, [name]
    found = []
    while work:
        now = work.pop()
        if now not in made:
            found.append(now)
            continue
        new = [other for other in made[now][0] if other not in seen]
        seen.update(new)
        work += new
    return sorted(found)


@contextmanager
def planning(
    operator: torch._ops.OpOverload, origin: Origin | None, values: Callable[[], Sequence[str]]
) -> Iterator[None]:
    """Around what is made of an operator before the step runs.

    Raises:
        UnsupportedStepError: Its form is one that nothing is known of.
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
