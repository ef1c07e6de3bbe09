"""How many microbatches a stage holds at once: the part of a schedule that memory depends on.

References:
    Huang et al., "GPipe", NeurIPS 2019.
    Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM", SC 2021, section 2.2.1 (1F1B).
    Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023, section 4
    (eager-1F1B).
    Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2 (ZB-H1 and ZB-H2).
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from stagecut.base.checks import is_count
from stagecut.errors import InvalidInputError

InFlightFunction = Callable[[int, int], int]
"""Of the stages from this one to the last, and the microbatches: how many are in flight at most."""


def gpipe(stages_from_here: int, n_microbatches: int) -> int:
    """Microbatches in flight under GPipe: all."""
    return n_microbatches


def one_f_one_b(stages_from_here: int, n_microbatches: int) -> int:
    """Microbatches in flight under 1F1B: one for each stage from here on, if there are as many."""
    return min(stages_from_here, n_microbatches)


def eager_one_f_one_b(stages_from_here: int, n_microbatches: int) -> int:
    """Microbatches in flight under eager-1F1B: two for each stage after this one, and one."""
    return min(2 * stages_from_here - 1, n_microbatches)


SCHEDULES: Mapping[str, InFlightFunction] = MappingProxyType(
    {
        "gpipe": gpipe,
        "1f1b": one_f_one_b,
        "eager-1f1b": eager_one_f_one_b,
        "zb-h1": one_f_one_b,
        "zb-h2": eager_one_f_one_b,
    }
)
"""By name. The zero-bubble schedules hold as many microbatches between a forward and the gradient
of its inputs as 1F1B and twice that less one. What their delayed gradients of weights keep besides,
on later stages, is in none of these numbers: it belongs in `StageCost.temporary_bytes`.
"""


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
