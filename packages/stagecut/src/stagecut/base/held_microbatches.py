"""How many microbatches a stage holds at once: the only property of a schedule in peak memory.

The schedules that have a name here are those of costmodel, which counts the microbatches
(`costmodel.in_flight`). For any other schedule a caller passes a function; `frontends` does so for
those of pipesched.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import costmodel

from stagecut.base.checks import is_count
from stagecut.errors import InvalidInputError

InFlightFunction = Callable[[int, int], int]
"""The most microbatches that are in flight on a stage at once.

Arguments: the number of stages from this one to the last, and the number of microbatches.
"""


def _held(schedule: str, stages_from_here: int, n_microbatches: int) -> int:
    """Microbatches that a stage holds if, with it, `stages_from_here` stages are left.

    It holds as many as the first stage of a pipeline of this length.
    """
    return costmodel.in_flight(schedule, 0, stages_from_here, n_microbatches).activations


SCHEDULES: Mapping[str, InFlightFunction] = MappingProxyType(
    {name: partial(_held, name) for name in costmodel.LINEAR_SCHEDULES}
)
"""The function of each schedule, by its name.

Between a forward and the gradient of its inputs, ZB-H1 holds as many microbatches as 1F1B, and
ZB-H2 twice as many less one. The delayed gradients of weights keep further values on later stages.
These are not in the numbers here: they belong in `StageCost.temporary_bytes`.
"""

gpipe = SCHEDULES["gpipe"]
"""Microbatches in flight under GPipe: all."""

one_f_one_b = SCHEDULES["1f1b"]
"""Microbatches in flight under 1F1B: one for each stage from this one on, but never more than there
are microbatches."""

eager_one_f_one_b = SCHEDULES["eager-1f1b"]
"""Microbatches in flight under eager-1F1B: one, and two for each stage after this one, but never
more than there are microbatches."""


def held_by(in_flight: InFlightFunction, stages_from_here: int, n_microbatches: int) -> int:
    """Call the caller's `in_flight` and check its result.

    Returns:
        The number of microbatches that a stage holds.

    Raises:
        InvalidInputError: The result is not a whole number of at least 1.
    """
    held = in_flight(stages_from_here, n_microbatches)
    if not is_count(held):
        raise InvalidInputError(
            "a stage holds at least one microbatch; "
            f"got in_flight({stages_from_here}, {n_microbatches})={held!r}"
        )
    return held


def in_flight_of(schedule: str) -> InFlightFunction:
    """The function of the schedule with this name.

    Raises:
        InvalidInputError: There is no schedule of this name.
    """
    if not isinstance(schedule, str) or schedule not in SCHEDULES:
        raise InvalidInputError(
            f"a schedule is one of {', '.join(SCHEDULES)}; got schedule={schedule!r}"
        )
    return SCHEDULES[schedule]
