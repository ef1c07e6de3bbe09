"""The known schedules, which differ only in how many forwards a rank runs before a backward.

Stage `i` (counted from 0) of `S` stages warms up with some forwards, then runs one backward and
one forward in turn, then the backwards that are left. The warm-up, capped at the `M` microbatches:

- GPipe: `M`, so all of them.                                              -> `gpipe`
- 1F1B: `S - i`, the fewest that keep a pipeline without transfers full.   -> `one_f_one_b`
- eager-1F1B: `2 (S - i - 1) + 1`, which leaves a forward's work between a
  result and its use in the next stage, so its transfer can hide there.    -> `eager_1f1b`

References:
    Huang et al., "GPipe", NeurIPS 2019, figure 2. It runs the backwards in the opposite order;
    we keep the order of the forwards, so that the transfers of every edge keep theirs.
    Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM", SC 2021, section 2.2.1 (1F1B).
    Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023, section 4
    (both 1F1B and eager-1F1B, with i counted from 1).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest

from pipesched.action import Action
from pipesched.errors import UnknownScheduleError
from pipesched.kind import Kind
from pipesched.schedule import Schedule, check_sizes


def gpipe(n_stages: int, n_microbatches: int) -> Schedule:
    """All forwards, then all backwards. Keeps the activations of every microbatch.

    Raises:
        ArgumentError: No stage or no microbatch.
    """
    return _schedule("gpipe", n_stages, n_microbatches, lambda stage: n_microbatches)


def one_f_one_b(n_stages: int, n_microbatches: int) -> Schedule:
    """1F1B: as fast as GPipe, with at most `n_stages - stage` microbatches in flight.

    Raises:
        ArgumentError: No stage or no microbatch.
    """
    return _schedule("1f1b", n_stages, n_microbatches, lambda stage: n_stages - stage)


def eager_1f1b(n_stages: int, n_microbatches: int) -> Schedule:
    """1F1B with forwards run earlier, to hide their transfers, for more microbatches in flight.

    If all stages take the same time and so do all transfers of one direction, it is never slower
    than 1F1B [measured: the tests find no case]. Otherwise it can be, as a forward run early may
    hold up a backward that others wait for: simulate both and take the better.

    Raises:
        ArgumentError: No stage or no microbatch.
    """
    return _schedule(
        "eager-1f1b", n_stages, n_microbatches, lambda stage: 2 * (n_stages - stage - 1) + 1
    )


_GENERATORS = {"gpipe": gpipe, "1f1b": one_f_one_b, "eager-1f1b": eager_1f1b}

NAMES = tuple(_GENERATORS)
"""What `make` knows."""


def make(name: str, n_stages: int, n_microbatches: int) -> Schedule:
    """The schedule called `name`.

    Raises:
        UnknownScheduleError: No schedule is called `name`.
        ArgumentError: No stage or no microbatch.
    """
    if name not in _GENERATORS:
        raise UnknownScheduleError(f"a schedule is one of {', '.join(NAMES)}; got name={name!r}")
    return _GENERATORS[name](n_stages, n_microbatches)


def _schedule(
    name: str, n_stages: int, n_microbatches: int, warm_up: Callable[[int], int]
) -> Schedule:
    check_sizes(n_stages, n_microbatches)
    ranks = tuple(_rank(stage, n_microbatches, warm_up(stage)) for stage in range(n_stages))
    return Schedule(name, n_stages, n_microbatches, ranks)


def _rank(stage: int, n_microbatches: int, warm_up: int) -> tuple[Action, ...]:
    forwards = [Action(Kind.FORWARD, stage, m) for m in range(n_microbatches)]
    backwards = [Action(Kind.BACKWARD, stage, m) for m in range(n_microbatches)]
    order = forwards[:warm_up]
    for backward, forward in zip_longest(backwards, forwards[warm_up:]):
        order.append(backward)
        if forward is not None:
            order.append(forward)
    return tuple(order)
