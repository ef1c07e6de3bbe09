"""Several stages (chunks) a rank, in a loop: stage s on rank s mod n_ranks. Whole backwards.

A microbatch passes every rank once for each chunk, so a rank waits for the first microbatch only
as long as one *chunk* takes on each rank before it: the more chunks, the smaller the bubble, for
more transfers. The two schedules differ in what goes first when microbatches are ready for several
chunks: the later chunk (depth first) or the earlier one (breadth first).

References:
    Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM", SC 2021, section 2.2.2 (interleaved 1F1B). Megatron-LM's core, `schedules.py`,
    for the warm-up and for groups of any size.
    Lamy-Poirier, "Breadth-First Pipeline Parallelism", MLSys 2023, section 4.
"""

from __future__ import annotations

from itertools import pairwise, starmap

from pipesched.base.checks import check_sizes, is_count
from pipesched.errors import ArgumentError
from pipesched.generators.entry import ScheduleEntry
from pipesched.generators.form import ClosedForm, KnownForm, StepSizes, form_of
from pipesched.generators.order import backward, forward, in_turn, ranks_for
from pipesched.schedule.schedule import Schedule


def interleaved_1f1b(
    n_stages: int,
    n_microbatches: int,
    *,
    n_chunks: int = 2,
    group_size: int | None = None,
) -> Schedule:
    """1F1B over chunks: a group of microbatches through one chunk, then through the next.

    Rank r of p warms up with `2 (p - r - 1) + (n_chunks - 1) group_size` forwards, then runs one
    forward and one backward in turn. With one chunk, this is eager-1F1B.

    Args:
        n_stages: A multiple of `n_chunks`.
        n_microbatches: Any number.
        n_chunks: Stages of each rank.
        group_size: Microbatches of a group; the last group has what is left. By default, groups
            about as large as each other, of at least as many microbatches as there are ranks,
            which keeps all ranks busy. Smaller ones leave a bubble in each, for less memory.

    Raises:
        ArgumentError: No microbatch, no group, or stages that do not divide.
    """
    check_sizes(n_stages, n_microbatches)
    n_ranks = ranks_for("interleaved-1f1b", n_stages, n_chunks)
    groups = groups_of(n_microbatches, n_ranks, group_size)
    ranks = []
    for rank in range(n_ranks):
        stages = range(rank, n_stages, n_ranks)
        forwards = [forward(s, m) for group in groups for s in stages for m in group]
        backwards = [backward(s, m) for group in groups for s in stages[::-1] for m in group]
        # Megatron's and torch's count. Of groups too small for it, two must do: a forward more, and
        # rank 0 waits for the last rank, which waits for the backward that rank 0 has put off.
        warm_up = 2 * (n_ranks - rank - 1)
        if n_chunks > 1:
            warm_up = min(warm_up, len(groups[0]) + len(groups[-1]))
        warm_up += (n_chunks - 1) * len(groups[0])
        ranks.append(in_turn(forwards, backwards, warm_up + 1))
    return Schedule("interleaved-1f1b", n_stages, n_microbatches, tuple(ranks))


def looped_bfs(n_stages: int, n_microbatches: int, *, n_chunks: int = 2) -> Schedule:
    """Every microbatch through one chunk, then through the next: all forwards, then all backwards.

    Keeps the activations of every microbatch; for that, gradients can be reduced one chunk at a
    time while others still run, and parameters be gathered once a chunk and pass. The backwards
    take the microbatches in the opposite order, as torch's do.

    Args:
        n_stages: A multiple of `n_chunks`.
        n_microbatches: Any number.
        n_chunks: Stages of each rank.

    Raises:
        ArgumentError: No microbatch, or stages that do not divide.
    """
    check_sizes(n_stages, n_microbatches)
    n_ranks = ranks_for("looped-bfs", n_stages, n_chunks)
    microbatches = range(n_microbatches)
    ranks = []
    for rank in range(n_ranks):
        stages = range(rank, n_stages, n_ranks)
        forwards = [forward(s, m) for s in stages for m in microbatches]
        backwards = [backward(s, m) for s in stages[::-1] for m in microbatches[::-1]]
        ranks.append((*forwards, *backwards))
    return Schedule("looped-bfs", n_stages, n_microbatches, tuple(ranks))


def groups_of(n_microbatches: int, n_ranks: int, group_size: int | None) -> list[range]:
    """The microbatches, cut into groups that go through one chunk after the other.

    Raises:
        ArgumentError: No microbatch in a group.
    """
    if group_size is None:
        n_groups = max(1, n_microbatches // n_ranks)
        ends = [-(-n_microbatches * i // n_groups) for i in range(n_groups + 1)]
    elif not is_count(group_size):
        raise ArgumentError(f"a group has at least one microbatch; got group_size={group_size!r}")
    else:
        ends = [*range(0, n_microbatches, group_size), n_microbatches]
    return list(starmap(range, pairwise(ends)))


def looped_slots(s: StepSizes) -> int:
    """Slots in which a rank waits for its first microbatch, in each chunk too if they are few."""
    return s.p - 1 + (s.v - 1) * max(0, s.p - s.m)


def _interleaved_1f1b_form(s: StepSizes) -> ClosedForm:
    group = -(-s.m // max(1, s.m // s.p))
    peak = min(s.m * s.v, 2 * (s.p - 1) + (s.v - 1) * group + 1)
    bubble_s = looped_slots(s) * (s.f + s.i + s.w)
    return form_of(bubble_s, peak, "Narayanan et al. 2021, section 2.2.2")


def _looped_bfs_form(s: StepSizes) -> ClosedForm:
    bubble_s = looped_slots(s) * (s.f + s.i + s.w)
    return form_of(bubble_s, s.m * s.v, "Lamy-Poirier 2023, section 4")


ENTRIES = (
    ScheduleEntry(
        "interleaved-1f1b", interleaved_1f1b, closed_form=KnownForm(_interleaved_1f1b_form)
    ),
    ScheduleEntry("looped-bfs", looped_bfs, closed_form=KnownForm(_looped_bfs_form)),
)
