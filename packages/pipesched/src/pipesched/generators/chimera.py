"""Chimera: two pipelines through the same ranks, in opposite directions.

Each direction has half of the microbatches. Every rank has one stage of each direction, for example
the first stage of one and the last of the other. While one direction fills, a rank can run work of
the other one. So only about half of 1F1B's bubble remains, at the cost of two copies of the
parameters.

On a clock with one tick for each forward or backward, microbatch k of a direction runs its forward
of stage s at tick `s + 2 k`, and its backward at tick `2 S - 1 - s + 2 k`. So if the number S of
stages is even, the two directions never need a rank in the same tick. `S / 2` microbatches of each
direction are a unit, which keeps each rank busy for `2 S` ticks. Then the next unit starts, in the
bubbles of the previous one ("direct concatenation" in section 3.5 of the paper).

Reference:
    Li, Hoefler, "Chimera: Efficiently Training Large-Scale Neural Networks with Bidirectional
    Pipelines", SC 2021, sections 3.1 and 3.5, figure 3.
"""

from __future__ import annotations

from pipesched.base.action import Action
from pipesched.base.checks import check_sizes
from pipesched.base.placement import Placement
from pipesched.errors import ArgumentError
from pipesched.generators.entry import ScheduleEntry
from pipesched.generators.form import ClosedForm, KnownForm, StepSizes, form_of
from pipesched.generators.order import backward, forward
from pipesched.schedule.schedule import Schedule


def chimera(n_stages: int, n_microbatches: int) -> Schedule:
    """Chimera: the first half of the microbatches goes up the ranks, the other half goes down.

    Args:
        n_stages: An even number. There are as many ranks, with two stages on each.
        n_microbatches: Any number; multiples of `n_stages` have the smallest bubble.

    Raises:
        ArgumentError: There is no microbatch, or the number of stages is odd.
    """
    check_sizes(n_stages, n_microbatches)
    if n_stages % 2:
        raise ArgumentError(
            "chimera has an even number of stages, so that its two directions never meet; "
            f"got n_stages={n_stages}"
        )
    placement = Placement.bidirectional(n_stages, n_microbatches)
    ticks: list[dict[int, Action]] = [{} for _ in range(n_stages)]
    n_up = placement.route_of.count(0)
    for m in range(n_microbatches):
        unit, k = divmod(m - n_up if placement.route_of[m] else m, n_stages // 2)
        start = 2 * (n_stages * unit + k)
        for stage in range(n_stages):
            on_rank = ticks[placement.rank(stage, m)]
            on_rank[start + stage] = forward(stage, m)
            on_rank[start + 2 * n_stages - 1 - stage] = backward(stage, m)
    ranks = tuple(tuple(on_rank[tick] for tick in sorted(on_rank)) for on_rank in ticks)
    return Schedule("chimera", n_stages, n_microbatches, ranks, placement)


def _form(s: StepSizes) -> ClosedForm:
    # Table 2 has one unit of p microbatches. Each further unit adds the time by which its backwards
    # take longer than its forwards.
    b = s.i + s.w
    bubble_s = (s.p - 2) * (b + (s.m // s.p - 1) * (b - s.f))
    return form_of(bubble_s, s.p, "Li, Hoefler 2021, table 2")


def _is_known(s: StepSizes) -> bool:
    return s.m % s.p == 0 and s.f <= s.i + s.w


ENTRIES = (
    ScheduleEntry(
        "chimera",
        chimera,
        closed_form=KnownForm(_form, "m is a multiple of p, and F <= I + W", _is_known),
    ),
)
