"""The schedules that are known by name: ours, a family a file, and those that others register.

All of them list forwards and backwards only; `pipesched.with_communication` adds the transfers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipesched.base.checks import is_amount
from pipesched.errors import ArgumentError
from pipesched.generators import (
    automatic,
    chimera,
    dualpipe,
    inference,
    interleaved,
    v_shaped,
    warm_up,
    zero_bubble,
)
from pipesched.generators.entry import ScheduleEntry
from pipesched.generators.form import ClosedForm, KnownForm, StepSizes
from pipesched.generators.table import ScheduleTable
from pipesched.schedule.schedule import Schedule

_OURS = (
    *warm_up.ENTRIES,
    *interleaved.ENTRIES,
    *zero_bubble.ENTRIES,
    *automatic.ENTRIES,
    *v_shaped.ENTRIES,
    *dualpipe.ENTRIES,
    *chimera.ENTRIES,
    *inference.ENTRIES,
)

NAMES = tuple(entry.name for entry in _OURS)
"""Schedules that pipesched has itself; `schedule_names` has those of others, too."""

_TABLE = ScheduleTable(_OURS)


def register_schedule(
    name: str,
    generator: Callable[..., Schedule],
    *,
    case: tuple[int, int] = (4, 8),
    closed_form: KnownForm | None = None,
) -> None:
    """Let this process know a schedule by a name, as it knows ours.

    A distribution that has schedules need not be imported for it: an entry point of the group
    `pipesched.schedules` is a `ScheduleEntry`, and is found by its name.

    Args:
        name: One word.
        generator: A function from numbers of stages and microbatches to a `Schedule` of that name,
            of forwards and backwards only. It raises `ArgumentError` for sizes for which there is
            none. Its keywords, each with a default, are options of `make`.
        case: Stages and microbatches for which there is one. It is made and checked here, and
            stands for all others: so many stages a rank, so many copies of a stage.
        closed_form: Its bubble and peak memory, for `pipesched.closed_form`.

    Raises:
        RegistrationError: Another schedule has the name; or the generator makes something else
            than such a schedule, or one that `check` does not let pass.

    Examples:
        >>> from dataclasses import replace
        >>> def hasty(n_stages, n_microbatches):
        ...     depth = [min(n_stages - stage + 1, n_microbatches) for stage in range(n_stages)]
        ...     made = make("eager-1f1b", n_stages, n_microbatches, depth=depth)
        ...     return replace(made, name="hasty")
        >>> register_schedule("hasty", hasty)
        >>> print(make("hasty", 2, 3))
        hasty stages=2 microbatches=3
        rank 0: F0.0 F0.1 F0.2 B0.0 B0.1 B0.2
        rank 1: F1.0 F1.1 B1.0 F1.2 B1.1 B1.2
    """
    _TABLE.add(ScheduleEntry(name, generator, case, closed_form))


def schedule_names() -> tuple[str, ...]:
    """What `make` knows: ours, those that were registered, and those of installed distributions.

    Raises:
        RegistrationError: Distributions have schedules of the same name.
    """
    return _TABLE.names()


def schedule_entry(name: str) -> ScheduleEntry:
    """What is known of the schedule called `name`.

    Raises:
        UnknownScheduleError: No schedule is called so.
        RegistrationError: That of an installed distribution cannot be loaded.

    Examples:
        >>> entry = schedule_entry("interleaved-1f1b")
        >>> entry.stages_a_rank, entry.copies_of_stages, entry.options
        (2, 1, ('n_chunks', 'group_size'))
    """
    return _TABLE.entry(name)


def make(name: str, n_stages: int, n_microbatches: int, **options: Any) -> Schedule:
    """The schedule called `name`.

    Args:
        name: One of `schedule_names()`.
        n_stages: Of the model; those on V-shaped or looped placements have fewer ranks.
        n_microbatches: Of the batch.
        options: Those of the generator, as `n_chunks=4` of "interleaved-1f1b".

    Raises:
        UnknownScheduleError: No schedule is called `name`.
        ArgumentError: Sizes for which it is not defined, or an option that it does not have.

    Examples:
        >>> print(make("zb-h1", n_stages=2, n_microbatches=3))
        zb-h1 stages=2 microbatches=3
        rank 0: F0.0 F0.1 I0.0 W0.0 F0.2 I0.1 W0.1 I0.2 W0.2
        rank 1: F1.0 I1.0 F1.1 I1.1 W1.0 F1.2 I1.2 W1.1 W1.2
    """
    entry = _TABLE.entry(name)
    for option in options:
        if option not in entry.options:
            raise ArgumentError(
                f"the options of {name} are {', '.join(entry.options) or 'none'}; got {option}"
            )
    return entry.generator(n_stages, n_microbatches, **options)


def closed_form(
    name: str,
    n_stages: int,
    n_microbatches: int,
    *,
    forward_s: float,
    input_gradient_s: float,
    weight_gradient_s: float,
    n_chunks: int | None = None,
) -> ClosedForm:
    """The formula for a schedule, evaluated; see `pipesched.generators.form`.

    Args:
        name: One of `schedule_names()`.
        n_stages: As for `pipesched.make`.
        n_microbatches: As for `pipesched.make`.
        forward_s: Seconds of one stage (F).
        input_gradient_s: Seconds of one stage (I).
        weight_gradient_s: Seconds of one stage (W); a whole backward takes both.
        n_chunks: Of those that have this option, as "interleaved-1f1b"; their default if None.

    Raises:
        UnknownScheduleError: No schedule is called `name`.
        ArgumentError: Sizes for which the schedule is not defined, or sizes or times for which it
            has no closed form that we know.

    Examples:
        >>> closed_form(
        ...     "zb-h1", 4, 8, forward_s=1.0, input_gradient_s=1.0, weight_gradient_s=1.0
        ... ).bubble_s
        3.0
    """
    options = {} if n_chunks is None else {"n_chunks": n_chunks}
    p = len(make(name, n_stages, n_microbatches, **options).ranks)
    times = forward_s, input_gradient_s, weight_gradient_s
    if not all(map(is_amount, times)):
        raise ArgumentError(
            f"a time is finite and not negative; got F={times[0]!r}, I={times[1]!r}, W={times[2]!r}"
        )
    sizes = StepSizes(p, n_stages // p, n_microbatches, *times)
    known = _TABLE.entry(name).closed_form
    if known is None or not known.holds(sizes):
        rule = "none is known" if known is None else known.rule
        raise ArgumentError(
            f"a closed form of {name} is known if: {rule}; got p={p}, m={n_microbatches}, "
            f"F={forward_s}, I={input_gradient_s}, W={weight_gradient_s}"
        )
    return known.form(sizes)
