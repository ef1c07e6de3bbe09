"""Interleaved schedules: several stages (chunks) on each rank, in a loop, with whole backwards.

Stage s is on rank s mod n_ranks. A microbatch passes through every rank once for each chunk, so a
rank waits for the first microbatch only as long as one *chunk* takes on each rank before it. With
more chunks, the bubble is smaller, but there are more transfers. The two schedules here differ in
what runs first if microbatches are ready for several chunks: the later chunk (depth first) or the
earlier one (breadth first).

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
    """Interleaved 1F1B: a group of microbatches goes through one chunk, then through the next.

    Rank r of p warms up with `2 (p - r - 1) + (n_chunks - 1) group_size` forwards, then runs one
    forward and one backward in turn. With one chunk, this is eager-1F1B.

    Args:
        n_stages: A multiple of `n_chunks`.
        n_microbatches: Any number.
        n_chunks: Stages on each rank.
        group_size: Microbatches of a group; the last group has the remaining ones. By default,
            groups have about the same size, with at least as many microbatches as there are ranks,
            which keeps all ranks busy. Smaller groups need less memory, but leave a bubble in each.

    Raises:
        ArgumentError: There is no microbatch, a group is empty, or `n_stages` is not a multiple of
            `n_chunks`.
    """
    check_sizes(n_stages, n_microbatches)
    n_ranks = ranks_for("interleaved-1f1b", n_stages, n_chunks)
    groups = groups_of(n_microbatches, n_ranks, group_size)
    ranks = []
    for rank in range(n_ranks):
        stages = range(rank, n_stages, n_ranks)
        forwards = [forward(s, m) for group in groups for s in stages for m in group]
        backwards = [backward(s, m) for group in groups for s in stages[::-1] for m in group]
        # Megatron and torch count the warm-up in this way. If groups are too small for it, the
        # forwards of two groups must be enough: with one more, rank 0 would wait for the last rank,
        # which waits for a backward that rank 0 has not run yet.
        warm_up = 2 * (n_ranks - rank - 1)
        if n_chunks > 1:
            warm_up = min(warm_up, len(groups[0]) + len(groups[-1]))
        warm_up += (n_chunks - 1) * len(groups[0])
        ranks.append(in_turn(forwards, backwards, warm_up + 1))
    return Schedule("interleaved-1f1b", n_stages, n_microbatches, tuple(ranks))


def looped_bfs(n_stages: int, n_microbatches: int, *, n_chunks: int = 2) -> Schedule:
    """Looped BFS: all microbatches go through one chunk, then the next; then all backwards.

    It keeps the activations of every microbatch. In return, gradients can be reduced one chunk at a
    time while other chunks still run, and parameters can be gathered once for each chunk and pass.
    The backwards take the microbatches in the opposite order, as torch's do.

    Args:
        n_stages: A multiple of `n_chunks`.
        n_microbatches: Any number.
        n_chunks: Stages on each rank.

    Raises:
        ArgumentError: There is no microbatch, or `n_stages` is not a multiple of `n_chunks`.
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
    """The microbatches, divided into groups that go through one chunk after the other.

    Raises:
        ArgumentError: `group_size` is below 1.
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
    """Slots in which a rank waits for its first microbatch; if there are few, in each chunk."""
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
