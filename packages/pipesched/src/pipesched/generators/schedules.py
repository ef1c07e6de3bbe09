"""The schedules that have a name: ours, with one file for each family, and registered ones.

All of them list only forwards and backwards; `pipesched.with_communication` adds the transfers.
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
"""The names of pipesched's own schedules; `schedule_names` also returns registered ones."""

_TABLE = ScheduleTable(_OURS)


def register_schedule(
    name: str,
    generator: Callable[..., Schedule],
    *,
    case: tuple[int, int] = (4, 8),
    closed_form: KnownForm | None = None,
) -> None:
    """Register a schedule in this process, so that it can be used by its name as ours can.

    A distribution that provides schedules need not be imported for this: it has entry points of the
    group `pipesched.schedules`, each a `ScheduleEntry`, which are found by their names.

    Args:
        name: One word.
        generator: A function from numbers of stages and microbatches to a `Schedule` of this name,
            with only forwards and backwards. It raises `ArgumentError` for sizes for which there is
            no schedule. Its keywords, each with a default, are options of `make`.
        case: Stages and microbatches for which there is a schedule. It is made and checked here,
            and is an example for all others: these have as many stages on each rank, and as many
            copies of a stage.
        closed_form: Its bubble and peak memory, for `pipesched.closed_form`.

    Raises:
        RegistrationError: Another schedule has this name; or the generator does not make such a
            schedule, or makes one that `check` refuses.

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
    """All names for `make`: ours, the registered ones, and those of installed distributions.

    Raises:
        RegistrationError: Several distributions have schedules of the same name.
    """
    return _TABLE.names()


def is_schedule(name: str) -> bool:
    """Whether `schedule_entry` knows this name.

    Raises:
        RegistrationError: Several distributions have schedules of the same name.

    Examples:
        >>> is_schedule("interleaved-1f1b:4"), is_schedule("1f1b:4")
        (True, False)
    """
    return name in _TABLE


def schedule_entry(name: str) -> ScheduleEntry:
    """The entry of the schedule called `name`.

    Args:
        name: One of `schedule_names()`; or, for a schedule that has the option `n_chunks`,
            `NAME:CHUNKS`: the same with this many stages on each rank.

    Raises:
        UnknownScheduleError: There is no schedule of this name.
        RegistrationError: The schedule of an installed distribution cannot be loaded.

    Examples:
        >>> entry = schedule_entry("interleaved-1f1b")
        >>> entry.stages_a_rank, entry.copies_of_stages, entry.options
        (2, 1, ('n_chunks', 'group_size'))
        >>> schedule_entry("interleaved-1f1b:4").stages_a_rank
        4
    """
    return _TABLE.entry(name)


def make(name: str, n_stages: int, n_microbatches: int, **options: Any) -> Schedule:
    """The schedule called `name`.

    Args:
        name: One of `schedule_names()`, or `NAME:CHUNKS` as for `schedule_entry`.
        n_stages: Number of stages. Schedules with several stages on each rank have fewer ranks.
        n_microbatches: Number of microbatches.
        options: Options of the generator, such as `n_chunks=4` for "interleaved-1f1b".

    Raises:
        UnknownScheduleError: There is no schedule of this name.
        ArgumentError: The schedule is not defined for these sizes, or does not have this option.

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
    """The bubble and the peak activations of a schedule, see `pipesched.generators.form`.

    Args:
        name: One of `schedule_names()`.
        n_stages: As for `pipesched.make`.
        n_microbatches: As for `pipesched.make`.
        forward_s: Seconds of the forward of one stage (F).
        input_gradient_s: Seconds of the input gradient of one stage (I).
        weight_gradient_s: Seconds of the weight gradient of one stage (W); a whole backward takes
            I + W.
        n_chunks: The option of schedules that have it, such as "interleaved-1f1b"; None for its
            default.

    Raises:
        UnknownScheduleError: There is no schedule of this name.
        ArgumentError: The schedule is not defined for these sizes, or no closed form is known for
            these sizes and times.

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
