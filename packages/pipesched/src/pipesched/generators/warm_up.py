"""GPipe, 1F1B and eager-1F1B: one stage on each rank, and whole backwards.

After a warm-up of forwards, a rank runs one backward and one forward in turn. These schedules
differ only in the warm-up: `depth[i]` forwards on stage `i` (counted from 0) of `S`, for `M`
microbatches. This is also the most microbatches that the stage holds:

- GPipe: `M`, so all of them.                                              -> `gpipe`
- 1F1B: `S - i`, the fewest that keep a pipeline without transfers full.   -> `one_f_one_b`
- eager-1F1B: `2 (S - i - 1) + 1`. Then a rank runs another forward between
  producing a result and its use in the next stage, which hides the
  transfer.                                                                -> `eager_1f1b`

References:
    Huang et al., "GPipe", NeurIPS 2019, figure 2. It runs the backwards in the opposite order;
    we keep the order of the forwards, so that the messages of every edge keep their order.
    Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM", SC 2021, section 2.2.1 (1F1B).
    Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023, section 4
    (both 1F1B and eager-1F1B, with i counted from 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pipesched.base.checks import check_sizes, is_count
from pipesched.errors import ArgumentError
from pipesched.generators.entry import ScheduleEntry
from pipesched.generators.form import ClosedForm, KnownForm, StepSizes, form_of
from pipesched.generators.order import backward, forward, in_turn
from pipesched.schedule.schedule import Schedule


def gpipe(n_stages: int, n_microbatches: int) -> Schedule:
    """GPipe: all forwards, then all backwards. It keeps the activations of every microbatch.

    Raises:
        ArgumentError: There is no stage or no microbatch.
    """
    check_sizes(n_stages, n_microbatches)
    return _schedule("gpipe", n_microbatches, [n_microbatches] * n_stages)


def one_f_one_b(n_stages: int, n_microbatches: int) -> Schedule:
    """1F1B: as fast as GPipe, with at most `n_stages - stage` microbatches in flight.

    Raises:
        ArgumentError: There is no stage or no microbatch.
    """
    check_sizes(n_stages, n_microbatches)
    return _schedule("1f1b", n_microbatches, range(n_stages, 0, -1))


def eager_1f1b(
    n_stages: int, n_microbatches: int, *, depth: Sequence[int] | None = None
) -> Schedule:
    """Eager-1F1B: 1F1B with earlier forwards, which hide transfers but hold more microbatches.

    If all stages take the same time, and all transfers of one direction do, too, it is never slower
    than 1F1B [measured: the tests find no case]. Otherwise it can be slower, because an early
    forward may delay a backward that other ranks wait for: simulate both and take the better.

    Args:
        n_stages: Number of stages, with one on each rank.
        n_microbatches: Any number.
        depth: Forwards that each stage runs before its first backward; by default
            `2 (n_stages - stage - 1) + 1`. A number above that of microbatches means all of them.

    Raises:
        ArgumentError: There is no stage or no microbatch, or no pipeline can run this depth: it is
            less than 1, or more than that of the previous stage, which runs no more forwards until
            it gets a gradient.
    """
    check_sizes(n_stages, n_microbatches)
    if depth is None:
        depth = range(2 * n_stages - 1, 0, -2)
    elif (
        not isinstance(depth, Sequence)
        or len(depth) != n_stages
        or not all(map(is_count, depth))
        or any(min(after, n_microbatches) > before for before, after in pairwise(depth))
    ):
        raise ArgumentError(
            "depth has one number for each stage, at least 1 and at most that of the previous "
            f"stage; got depth={depth!r} for n_stages={n_stages}"
        )
    return _schedule("eager-1f1b", n_microbatches, depth)


def _schedule(name: str, n_microbatches: int, depth: Sequence[int]) -> Schedule:
    microbatches = range(n_microbatches)
    ranks = tuple(
        in_turn(
            [forward(stage, m) for m in microbatches],
            [backward(stage, m) for m in microbatches],
            warm_up,
        )
        for stage, warm_up in enumerate(depth)
    )
    return Schedule(name, len(depth), n_microbatches, ranks)


def _gpipe_form(s: StepSizes) -> ClosedForm:
    # The paper says O((p - 1) / (m + p - 1)), as a share of the step.
    return form_of((s.p - 1) * (s.f + s.i + s.w), s.m, "Huang et al. 2019, section 2.3")


def _one_f_one_b_form(s: StepSizes) -> ClosedForm:
    peak = min(s.m, s.p)
    return form_of((s.p - 1) * (s.f + s.i + s.w), peak, "Narayanan et al. 2021, section 2.2.1")


def _eager_1f1b_form(s: StepSizes) -> ClosedForm:
    peak = min(s.m, 2 * s.p - 1)
    return form_of((s.p - 1) * (s.f + s.i + s.w), peak, "Zhuang et al. 2023, section 4")


ENTRIES = (
    ScheduleEntry("gpipe", gpipe, closed_form=KnownForm(_gpipe_form)),
    ScheduleEntry("1f1b", one_f_one_b, closed_form=KnownForm(_one_f_one_b_form)),
    ScheduleEntry("eager-1f1b", eager_1f1b, closed_form=KnownForm(_eager_1f1b_form)),
)
