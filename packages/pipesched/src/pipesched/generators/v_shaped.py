"""Two stages a rank, down the ranks and back up (a V), and backwards in two parts.

A microbatch leaves its last stage on the rank where it entered the first, so that rank can start
on backwards as soon as any, and all ranks hold about equally many activations.

`zb_v` is the schedule for the memory of 1F1B. The other two are for less. They repeat one building
block: what a microbatch does, as offsets on a clock that ticks once an action. Every microbatch
follows the one before after 6 ticks, which are the 6 actions that it costs a rank; so no two
collide if the slots of F, F, I, I differ modulo 6 on every rank, and W takes the slots left over,
first come first served. What a rank holds is the sum over its two stages of the ticks from F to W,
divided by 6 (equation 1 of the second paper), so the steps of the block set it:

- V-Half: F and I of the way down 2 ticks a rank, of the way up 1: about half of 1F1B's memory.
- V-Min:  1 tick a rank for all: about a third.

The gap between a microbatch's last F and its first I is the least without collisions.

References:
    Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 6, figure 8 (ZB-V).
    Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024, sections 2 and 3,
    tables 1, 8 and 9. There V-Half turns around after 2 ticks on the last rank; here after 1,
    which collides as little. We leave out their reordering before and after the steady state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from pipesched.generators.order import Step, numbered, ranks_for
from pipesched.kind import Kind
from pipesched.placement import Placement
from pipesched.schedule import Schedule, check_sizes

_F, _I, _W = Kind.FORWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT
_PERIOD = 6


def zb_v(n_stages: int, n_microbatches: int) -> Schedule:
    """ZB-V: no bubble in a rank's own span, for the memory of 1F1B's first rank on every rank.

    Made for stages whose F, I and W take the same time. With fewer than `n_stages - 1`
    microbatches, the steps of those that are not there are left out, as in torch.

    Args:
        n_stages: An even number, on half as many ranks.
        n_microbatches: Any number.

    Raises:
        ArgumentError: No microbatch, or an odd number of stages.
    """
    check_sizes(n_stages, n_microbatches)
    n_ranks = ranks_for("zb-v", n_stages, n_chunks=2)
    n_steps = max(n_microbatches, n_stages - 1)
    ranks = tuple(
        numbered(_zb_v_steps(rank, n_ranks, n_steps), n_microbatches) for rank in range(n_ranks)
    )
    return Schedule("zb-v", n_stages, n_microbatches, ranks, Placement.v(n_ranks))


def v_half(n_stages: int, n_microbatches: int) -> Schedule:
    """V-Half: about half of 1F1B's activations, for a bubble about half as large.

    Made for stages whose F, I and W take the same time.

    Args:
        n_stages: An even number, on half as many ranks.
        n_microbatches: Any number.

    Raises:
        ArgumentError: No microbatch, or an odd number of stages.
    """
    return _repeated("v-half", n_stages, n_microbatches, down=2)


def v_min(n_stages: int, n_microbatches: int) -> Schedule:
    """V-Min: about a third of 1F1B's activations, for a bubble about half as large.

    Made for stages whose F, I and W take the same time; with others, it leaves a bubble for every
    microbatch.

    Args:
        n_stages: An even number, on half as many ranks.
        n_microbatches: Any number.

    Raises:
        ArgumentError: No microbatch, or an odd number of stages.
    """
    return _repeated("v-min", n_stages, n_microbatches, down=1)


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


def _repeated(name: str, n_stages: int, n_microbatches: int, *, down: int) -> Schedule:
    check_sizes(n_stages, n_microbatches)
    n_ranks = ranks_for(name, n_stages, n_chunks=2)
    ranks = tuple(
        numbered(_squeezed(block, n_microbatches), n_microbatches)
        for block in _building_block(n_ranks, down)
    )
    return Schedule(name, n_stages, n_microbatches, ranks, Placement.v(n_ranks))


def _building_block(n_ranks: int, down: int) -> list[dict[int, Step]]:
    """Per rank, the ticks of one microbatch, without W."""
    last = n_ranks - 1
    for gap in range(1, _PERIOD + 1):
        blocks = []
        for rank in range(n_ranks):
            way_down = down * rank
            way_up = down * last + 1 + last - rank
            turn = down * last + 1 + last + gap
            up = 2 * n_ranks - 1 - rank
            blocks.append(
                {
                    way_down: (_F, rank),
                    way_up: (_F, up),
                    turn + way_down: (_I, up),
                    turn + way_up: (_I, rank),
                }
            )
        if all(len({tick % _PERIOD for tick in block}) == len(block) == 4 for block in blocks):
            return blocks
    raise AssertionError(f"no gap for n_ranks={n_ranks} and down={down}")


def _squeezed(block: dict[int, Step], n_microbatches: int) -> Iterator[Step]:
    """The block of every microbatch, and each W in the first tick that is free after its I."""
    ticks = {
        tick + _PERIOD * m: step for tick, step in block.items() for m in range(n_microbatches)
    }
    waiting: deque[int] = deque()
    for tick in range(max(ticks) + 1):
        if tick in ticks:
            kind, stage = ticks[tick]
            yield kind, stage
            if kind is _I:
                waiting.append(stage)
        elif waiting:
            yield _W, waiting.popleft()
    yield from [(_W, stage) for stage in waiting]
