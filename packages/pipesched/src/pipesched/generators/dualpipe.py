"""DeepSeek's DualPipe and DualPipeV, which pair forwards of one stage with backwards of another.

Every rank has two stages. In its steady state it runs the forward of one and the backward of the
other in turn. A runtime can overlap such a pair, so that the communication of each (for example
that of a mixture of experts) hides behind the computation of the other. Our lists have the forward
of a pair first.

- DualPipe: two directions through all ranks, with one stage of each direction on every rank.
- DualPipeV: a V, down the ranks and back up. It is half of DualPipe: where a microbatch would cross
  the middle, it goes back on the same ranks. So both have the same steps.

Reference:
    DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv 2412.19437, section 3.2.1, figure 5; its
    repository DualPipe, whose eight steps are those of `_steps`; DualPipeV ("cut-in-half") is by
    Sea AI Lab.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from pipesched.base.checks import check_sizes
from pipesched.base.kind import Kind
from pipesched.base.placement import Placement
from pipesched.errors import ArgumentError
from pipesched.generators.entry import ScheduleEntry
from pipesched.generators.form import ClosedForm, KnownForm, StepSizes, form_of
from pipesched.generators.order import Step, numbered, ranks_for
from pipesched.schedule.schedule import Schedule

_F, _B, _I, _W = Kind.FORWARD, Kind.BACKWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT


def dualpipe(n_stages: int, n_microbatches: int) -> Schedule:
    """DualPipe: two copies of the parameters, and at most `n_stages + 1` microbatches held.

    Args:
        n_stages: An even number, on as many ranks.
        n_microbatches: An even number, at least `2 n_stages`; the first half goes up the ranks.

    Raises:
        ArgumentError: The sizes are others.
    """
    check_sizes(n_stages, n_microbatches)
    if n_stages % 2 or n_microbatches % 2 or n_microbatches < 2 * n_stages:
        raise ArgumentError(
            "dualpipe sends half of the microbatches each way and fills both, so n_stages and "
            "n_microbatches are even and n_microbatches is at least 2 n_stages; "
            f"got n_stages={n_stages} and n_microbatches={n_microbatches}"
        )
    half = n_microbatches // 2
    ranks = []
    for rank in range(n_stages):
        going_up, going_down = rank, n_stages - 1 - rank
        early, late = sorted((going_up, going_down))
        steps = _steps(early, n_stages // 2, half, early, late)
        ranks.append(numbered(steps, n_microbatches, {going_down: half}))
    placement = Placement.bidirectional(n_stages, n_microbatches)
    return Schedule("dualpipe", n_stages, n_microbatches, tuple(ranks), placement)


def dualpipe_v(n_stages: int, n_microbatches: int) -> Schedule:
    """DualPipeV: the order of DualPipe on half of its ranks, with one copy of the parameters.

    Args:
        n_stages: An even number, on half as many ranks.
        n_microbatches: At least `n_stages`.

    Raises:
        ArgumentError: The sizes are others.
    """
    check_sizes(n_stages, n_microbatches)
    n_ranks = ranks_for("dualpipe-v", n_stages, n_chunks=2)
    if n_microbatches < n_stages:
        raise ArgumentError(
            "dualpipe-v fills its pipeline before it drains it, so n_microbatches is at least "
            f"n_stages; got n_stages={n_stages} and n_microbatches={n_microbatches}"
        )
    ranks = tuple(
        numbered(
            _steps(rank, n_ranks, n_microbatches, rank, n_stages - 1 - rank),
            n_microbatches,
        )
        for rank in range(n_ranks)
    )
    return Schedule("dualpipe-v", n_stages, n_microbatches, ranks, Placement.v(n_ranks))


def _steps(rank: int, n_ranks: int, n_microbatches: int, early: int, late: int) -> Iterator[Step]:
    """The steps of a rank.

    Args:
        rank: Distance from the end where microbatches enter, in the direction of the place where
            they turn or cross the middle.
        n_ranks: Number of ranks between the two.
        n_microbatches: Microbatches of one direction.
        early: The stage of the rank that a microbatch reaches first.
        late: The other stage.
    """
    further = n_ranks - rank - 1
    waiting: deque[int] = deque()

    def input_gradient(stage: int) -> Step:
        waiting.append(stage)
        return _I, stage

    def weight_gradient() -> Step:
        return _W, waiting.popleft()

    yield from [(_F, early)] * (2 * further)
    yield from [(_F, early), (_F, late)] * (rank + 1)
    for _ in range(further):
        yield input_gradient(late)
        yield weight_gradient()
        yield _F, late
    steady = n_microbatches - 2 * n_ranks + rank + 1
    yield from [(_F, early), (_B, late), (_F, late), (_B, early)] * steady
    yield from [(_B, late), (_F, late), (_B, early)] * further
    # The second half of these backwards is split: their W fill bubbles below.
    for i in range(2 * (rank + 1)):
        stage = (late, early)[i % 2]
        yield input_gradient(stage) if i > rank else (_B, stage)
    for _ in range(further):
        yield weight_gradient()
        yield input_gradient(early)
    while waiting:
        yield weight_gradient()


def _dualpipe_form(s: StepSizes) -> ClosedForm:
    # Table 2 has (p / 2 - 1) (F&B + B - 3 W), with F&B the time of an overlapped pair. Here a pair
    # takes F + B, and ranks do not wait for each other between pairs.
    return form_of((s.p // 2 - 1) * (s.f + s.i - s.w), s.p + 1, "ours")


def _dualpipe_v_form(s: StepSizes) -> ClosedForm:
    return form_of((s.p - 1) * (s.f + s.i - s.w), 2 * s.p + 1, "ours")


def _balanced(s: StepSizes) -> bool:
    return s.w <= s.i <= s.f <= s.i + s.w


_RULE = "W <= I <= F <= I + W"

ENTRIES = (
    ScheduleEntry("dualpipe", dualpipe, closed_form=KnownForm(_dualpipe_form, _RULE, _balanced)),
    ScheduleEntry(
        "dualpipe-v", dualpipe_v, closed_form=KnownForm(_dualpipe_v_form, _RULE, _balanced)
    ),
)
