"""How many microbatches a stage holds at once: the part of a schedule that memory depends on.

The schedules by name are costmodel's, which counts them (`costmodel.in_flight`). For any other
schedule there may be a function, as `frontends` has one for those of pipesched.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import costmodel

from stagecut.base.checks import is_count
from stagecut.errors import InvalidInputError

InFlightFunction = Callable[[int, int], int]
"""Of the stages from this one to the last, and the microbatches: how many are in flight at most."""


def _held(schedule: str, stages_from_here: int, n_microbatches: int) -> int:
    """What the first of so many stages holds, or one with as many after it."""
    return costmodel.in_flight(schedule, 0, stages_from_here, n_microbatches).activations


SCHEDULES: Mapping[str, InFlightFunction] = MappingProxyType(
    {name: partial(_held, name) for name in costmodel.LINEAR_SCHEDULES}
)
"""By name. The zero-bubble schedules hold as many microbatches between a forward and the gradient
of its inputs as 1F1B and twice that less one. What their delayed gradients of weights keep besides,
on later stages, is in none of these numbers: it belongs in `StageCost.temporary_bytes`.
"""

gpipe = SCHEDULES["gpipe"]
"""Microbatches in flight under GPipe: all."""

one_f_one_b = SCHEDULES["1f1b"]
"""Microbatches in flight under 1F1B: one for each stage from here on, if there are as many."""

eager_one_f_one_b = SCHEDULES["eager-1f1b"]
"""Microbatches in flight under eager-1F1B: two for each stage after this one, and one."""


def held_by(in_flight: InFlightFunction, stages_from_here: int, n_microbatches: int) -> int:
    """What a function of the caller says, checked.

    Raises:
        InvalidInputError: It is no number of microbatches.
    """
    held = in_flight(stages_from_here, n_microbatches)
    if not is_count(held):
        raise InvalidInputError(
            "a stage holds at least one microbatch; "
            f"got in_flight({stages_from_here}, {n_microbatches})={held!r}"
        )
    return held


def in_flight_of(schedule: str) -> InFlightFunction:
    """The function of a schedule called by its name.

    Raises:
        InvalidInputError: There is no schedule of that name.
    """
    if not isinstance(schedule, str) or schedule not in SCHEDULES:
        raise InvalidInputError(
            f"a schedule is one of {', '.join(SCHEDULES)}; got schedule={schedule!r}"
        )
    return SCHEDULES[schedule]
