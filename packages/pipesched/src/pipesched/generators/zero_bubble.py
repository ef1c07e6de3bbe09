"""The zero-bubble schedules ZB-H1 and ZB-H2: one stage on each rank, and split backwards.

The previous stage waits only for the input gradient (I) of a backward. The weight gradient (W) can
run at any later time, so it can fill bubbles. Stage i (counted from 0) of S warms up with some
forwards, then runs I and F in turn. From its `lag`-th I on, it also runs a W after each I, and at
the end the remaining W:

- ZB-H1: warm-up `S - i`, lag `i`. A stage holds at most S microbatches, as
  the first stage of 1F1B does, and the bubble is a third of 1F1B's.         -> `zb_h1`
- ZB-H2: warm-up `2 (S - i) - 1`, lag `2 i`. A stage holds at most `2 S - 1`
  microbatches, and has no bubble between its first action and its last.     -> `zb_h2`

Both are meant for stages whose F, I and W take the same time; use `pipesched.zb_auto` for others.

Reference:
    Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, sections 2.1 and 2.2, figure 3.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipesched.base.action import Action
from pipesched.base.checks import check_sizes
from pipesched.generators.entry import ScheduleEntry
from pipesched.generators.form import ClosedForm, KnownForm, StepSizes, form_of
from pipesched.generators.order import forward, input_gradient, weight_gradient
from pipesched.schedule.schedule import Schedule


def zb_h1(n_stages: int, n_microbatches: int) -> Schedule:
    """ZB-H1: every stage holds as much as the first stage of 1F1B, for a third of its bubble.

    Raises:
        ArgumentError: There is no stage or no microbatch.
    """
    check_sizes(n_stages, n_microbatches)
    return _schedule("zb-h1", n_stages, n_microbatches, range(n_stages, 0, -1), range(n_stages))


def zb_h2(n_stages: int, n_microbatches: int) -> Schedule:
    """ZB-H2: no bubble in the span of a stage, with at least `2 n_stages - 1` microbatches.

    The stages start and stop at different times. So the next step can only fill the idle time at
    the end of this one if the optimizer steps of the stages do not wait for each other (section 4
    of the paper).

    Raises:
        ArgumentError: There is no stage or no microbatch.
    """
    check_sizes(n_stages, n_microbatches)
    warm_up = range(2 * n_stages - 1, 0, -2)
    return _schedule("zb-h2", n_stages, n_microbatches, warm_up, range(0, 2 * n_stages, 2))


def _schedule(
    name: str,
    n_stages: int,
    n_microbatches: int,
    warm_up: Sequence[int],
    lag: Sequence[int],
) -> Schedule:
    ranks = tuple(
        _rank(stage, n_microbatches, warm_up[stage], lag[stage]) for stage in range(n_stages)
    )
    return Schedule(name, n_stages, n_microbatches, ranks)


def _rank(stage: int, n_microbatches: int, warm_up: int, lag: int) -> tuple[Action, ...]:
    order = [forward(stage, m) for m in range(min(warm_up, n_microbatches))]
    for m in range(n_microbatches):
        order.append(input_gradient(stage, m))
        if m >= lag:
            order.append(weight_gradient(stage, m - lag))
        if warm_up + m < n_microbatches:
            order.append(forward(stage, warm_up + m))
    left = range(max(0, n_microbatches - lag), n_microbatches)
    order += [weight_gradient(stage, m) for m in left]
    return tuple(order)


def _zb_h1_form(s: StepSizes) -> ClosedForm:
    # Table 2 has the case m >= p, (p - 1) (F + I - W), and appendix H the case m <= p.
    peak = min(s.m, s.p)
    return form_of((s.p - 1) * (s.f + s.i) - (peak - 1) * s.w, peak, "Qi et al. 2024, table 2")


def _zb_h2_form(s: StepSizes) -> ClosedForm:
    span_s = s.f + s.i - 2 * s.w
    bubble_s, span_bubble_s = (s.p - 1) * max(s.f, span_s), (s.p - 1) * span_s
    return form_of(bubble_s, 2 * s.p - 1, "Qi et al. 2024, table 2", span_bubble_s)


def _short_weight_gradient(s: StepSizes) -> bool:
    return s.w <= min(s.f, s.i)


def _short_and_filled(s: StepSizes) -> bool:
    return _short_weight_gradient(s) and s.m >= 2 * s.p - 1


ENTRIES = (
    ScheduleEntry(
        "zb-h1",
        zb_h1,
        closed_form=KnownForm(_zb_h1_form, "W <= F and W <= I", _short_weight_gradient),
    ),
    ScheduleEntry(
        "zb-h2",
        zb_h2,
        closed_form=KnownForm(_zb_h2_form, "W <= F, W <= I and m >= 2 p - 1", _short_and_filled),
    ),
)
