"""V-shaped schedules: two stages on each rank, down the ranks and back up, and split backwards.

The last stage of a microbatch is on the rank of its first stage. So this rank can start backwards
as early as any, and all ranks hold about equally many activations.

`zb_v` is the schedule for the memory of 1F1B. The other two need less memory. They repeat one
building block, which is a table of the actions of a microbatch on a clock with one tick for each
action. Each microbatch starts 6 ticks after the previous one, because it takes 6 actions on each
rank. So no two actions collide if the ticks of F, F, I, I on each rank differ modulo 6. The
activations that a rank holds are the sum over its two stages of the ticks from F to W, divided by 6
(equation 1 of the second paper). So the distances in the block determine the memory:

- V-Half: F and I take 2 ticks a rank on the way down, and 1 on the way up: half of 1F1B's memory.
- V-Min:  F and I take 1 tick a rank both ways: a third of 1F1B's memory.

Ranks run F and I in the order of the block's ticks, as early as they can. They run W when they
would otherwise wait, or hold more than the repeated block does.

References:
    Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 6, figure 8 (ZB-V).
    Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024, sections 2 and 3,
    tables 1, 8 and 9. In the paper, V-Half turns on the last rank after 2 ticks in the forward and
    1 in the backward; here it is the other way round, as in the authors' repository. We move only W
    out of the block's order, and not F and I, which is simpler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from pipesched.base.action import Action
from pipesched.base.checks import check_sizes
from pipesched.base.kind import Kind
from pipesched.base.placement import Placement
from pipesched.generators.entry import ScheduleEntry
from pipesched.generators.form import ClosedForm, KnownForm, StepSizes, form_of
from pipesched.generators.order import (
    Step,
    forward,
    input_gradient,
    numbered,
    ranks_for,
    weight_gradient,
)
from pipesched.schedule.schedule import Schedule

_F, _I, _W = Kind.FORWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT
_PERIOD = 6


def zb_v(n_stages: int, n_microbatches: int) -> Schedule:
    """ZB-V: no bubble in the span of a rank; every rank holds as much as the first of 1F1B.

    It is meant for stages whose F, I and W take the same time. With fewer than `n_stages - 1`
    microbatches, the steps of the missing ones are left out, as in torch.

    Args:
        n_stages: An even number, on half as many ranks.
        n_microbatches: Any number.

    Raises:
        ArgumentError: There is no microbatch, or the number of stages is odd.
    """
    check_sizes(n_stages, n_microbatches)
    n_ranks = ranks_for("zb-v", n_stages, n_chunks=2)
    n_steps = max(n_microbatches, n_stages - 1)
    ranks = tuple(
        numbered(_zb_v_steps(rank, n_ranks, n_steps), n_microbatches) for rank in range(n_ranks)
    )
    return Schedule("zb-v", n_stages, n_microbatches, ranks, Placement.v(n_ranks))


def v_half(n_stages: int, n_microbatches: int) -> Schedule:
    """V-Half: about half of the activations of 1F1B, with a bubble half as large.

    It is meant for stages whose F, I and W take the same time.

    Args:
        n_stages: An even number, on half as many ranks.
        n_microbatches: Any number.

    Raises:
        ArgumentError: There is no microbatch, or the number of stages is odd.
    """
    check_sizes(n_stages, n_microbatches)
    n_ranks = ranks_for("v-half", n_stages, n_chunks=2)
    odd = n_ranks % 2
    return _repeated(
        "v-half", n_ranks, n_microbatches, down=2, turn=1 if odd else 4, cap=n_ranks + 2 - odd
    )


def v_min(n_stages: int, n_microbatches: int) -> Schedule:
    """V-Min: about a third of the activations of 1F1B, with a bubble two thirds as large.

    It is meant for stages whose F, I and W take the same time; with others, it has a bubble in
    every microbatch.

    Args:
        n_stages: An even number, on half as many ranks.
        n_microbatches: Any number.

    Raises:
        ArgumentError: There is no microbatch, or the number of stages is odd.
    """
    check_sizes(n_stages, n_microbatches)
    n_ranks = ranks_for("v-min", n_stages, n_chunks=2)
    return _repeated(
        "v-min",
        n_ranks,
        n_microbatches,
        down=1,
        turn=1 if n_ranks % 3 else 3,
        cap=2 * ((n_ranks + 1) // 3 + 1),
    )


def _zb_v_steps(rank: int, n_ranks: int, n_microbatches: int) -> Iterator[Step]:
    down, up = rank, 2 * n_ranks - 1 - rank
    yield from [(_F, down)] * (2 * (n_ranks - rank) - 1)
    yield from [(_F, up), (_F, down)] * rank
    yield from [(_F, up), (_I, up), (_W, up)] * (n_ranks - rank)
    last_forward = n_microbatches - (2 * n_ranks - 1 - rank)
    for i in range(n_microbatches - n_ranks):
        if i < last_forward:
            yield _F, down
        yield from [(_I, down), (_W, down), (_F, up), (_I, up), (_W, up)]
    yield from [(_I, down), (_I, up)] * rank
    yield from [(_I, down), (_W, down)] * (n_ranks - rank)
    yield from [(_W, up)] * rank
    yield from [(_W, down)] * rank


def _repeated(
    name: str, n_ranks: int, n_microbatches: int, *, down: int, turn: int, cap: int
) -> Schedule:
    """The schedule that repeats a block, with W where there is time for it.

    Args:
        name: Name of the schedule.
        n_ranks: Number of ranks, half of that of stages.
        n_microbatches: Any number.
        down: Ticks from the F or I of a rank to that of the next rank on the way down; on the way
            up it is 1.
        turn: Ticks from the last F to the first I, both on rank 0.
        cap: Activations that a rank may hold; it holds as many if every action runs in its tick.
    """
    n_stages = 2 * n_ranks
    queues = [_block_order(rank, n_ranks, n_microbatches, down, turn) for rank in range(n_ranks)]
    waiting: list[deque[Action]] = [deque() for _ in queues]
    held = [0] * n_ranks
    ranks: list[list[Action]] = [[] for _ in queues]
    # The path of a microbatch has 2 n_stages steps: F of each stage, then I of each in the opposite
    # order. `started` counts the microbatches that started each step, and `finished` those that
    # finished the step before it.
    started = [0] * 2 * n_stages
    finished = [n_microbatches, *started]
    while any(queues) or any(waiting):
        in_this_tick = []
        for rank, queue in enumerate(queues):
            step = queue[0] if queue else None
            if (
                step is not None
                and finished[step] > started[step]
                and (step >= n_stages or held[rank] < cap)
            ):
                in_this_tick.append(queue.popleft())
                microbatch = started[step]
                if step < n_stages:
                    ranks[rank].append(forward(step, microbatch))
                    held[rank] += 1
                else:
                    stage = 2 * n_stages - 1 - step
                    ranks[rank].append(input_gradient(stage, microbatch))
                    waiting[rank].append(weight_gradient(stage, microbatch))
                started[step] += 1
            elif waiting[rank]:
                ranks[rank].append(waiting[rank].popleft())
                held[rank] -= 1
        for step in in_this_tick:
            finished[step + 1] += 1
    return Schedule(name, n_stages, n_microbatches, tuple(map(tuple, ranks)), Placement.v(n_ranks))


def _block_order(rank: int, n_ranks: int, n_microbatches: int, down: int, turn: int) -> deque[int]:
    """The F and I of a rank, as steps of the path, in the order of their ticks."""
    last = n_ranks - 1
    way_down = down * rank
    way_up = down * last + 1 + last - rank
    first_input_gradient = down * last + 1 + last + turn
    block = {
        way_down: rank,
        way_up: n_ranks + last - rank,
        first_input_gradient + way_down: 2 * n_ranks + rank,
        first_input_gradient + way_up + down - 1: 3 * n_ranks + last - rank,
    }
    ticks = {
        tick + _PERIOD * m: step for tick, step in block.items() for m in range(n_microbatches)
    }
    return deque(ticks[tick] for tick in sorted(ticks))


def _zb_v_form(s: StepSizes) -> ClosedForm:
    # The paper has the case m >= 2 p - 1: no bubble in the span.
    span = max(0, 4 * (s.p - 1) - 2 * (s.m - 1))
    bubble_s, peak = max(s.p - 1, span) * s.f, 2 * min(s.m, s.p)
    return form_of(bubble_s, peak, "Qi et al. 2024, section 6", span * s.f)


def _v_half_form(s: StepSizes) -> ClosedForm:
    # Table 1 has the peak for many ranks: half of the 2 p of 1F1B.
    odd = s.p % 2
    filling = 4 * s.p - 5 - 2 * max(0, s.m - 2 + odd)
    slots = max(3 * (s.p - 1) - odd, filling) if s.p > 1 else 0
    return form_of(slots * s.f, min(2 * s.m, s.p + 2 - odd), "ours")


def _v_min_form(s: StepSizes) -> ClosedForm:
    # Table 1 has the peak for many ranks: a third of the 2 p of 1F1B.
    longer = 2 if s.p % 3 == 0 and s.m > 1 else 0
    slots = 4 * s.p - 5 + longer if s.p > 1 else 0
    return form_of(slots * s.f, min(2 * s.m, 2 * ((s.p + 1) // 3 + 1)), "ours")


def _equal_times(s: StepSizes) -> bool:
    return s.f == s.i == s.w


ENTRIES = (
    ScheduleEntry("zb-v", zb_v, closed_form=KnownForm(_zb_v_form, "F = I = W", _equal_times)),
    ScheduleEntry("v-half", v_half, closed_form=KnownForm(_v_half_form, "F = I = W", _equal_times)),
    ScheduleEntry("v-min", v_min, closed_form=KnownForm(_v_min_form, "F = I = W", _equal_times)),
)
