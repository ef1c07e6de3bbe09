"""The inference schedule, which has only forwards."""

from __future__ import annotations

from pipesched.base.checks import check_sizes
from pipesched.generators.entry import ScheduleEntry
from pipesched.generators.form import ClosedForm, KnownForm, StepSizes, form_of
from pipesched.generators.interleaved import groups_of, looped_slots
from pipesched.generators.order import forward, ranks_for
from pipesched.schedule.schedule import Schedule


def inference(
    n_stages: int,
    n_microbatches: int,
    *,
    n_chunks: int = 1,
    group_size: int | None = None,
) -> Schedule:
    """Inference: every microbatch goes through every stage, without a backward.

    Args:
        n_stages: A multiple of `n_chunks`.
        n_microbatches: Any number.
        n_chunks: Stages on each rank, in a loop: stage s is on rank s mod n_ranks.
        group_size: Microbatches that go through one chunk before any goes through the next, as in
            `interleaved_1f1b`.

    Raises:
        ArgumentError: There is no microbatch, a group is empty, or `n_stages` is not a multiple of
            `n_chunks`.
    """
    check_sizes(n_stages, n_microbatches)
    n_ranks = ranks_for("inference", n_stages, n_chunks)
    groups = groups_of(n_microbatches, n_ranks, group_size)
    ranks = tuple(
        tuple(forward(s, m) for g in groups for s in range(rank, n_stages, n_ranks) for m in g)
        for rank in range(n_ranks)
    )
    return Schedule("inference", n_stages, n_microbatches, ranks, backward=False)


def _form(s: StepSizes) -> ClosedForm:
    # No rank waits for the last one, so the bubble is the time until the first F reaches it; this
    # is not part of the span.
    slots = looped_slots(s)
    return form_of(slots * s.f, 1, "ours", (slots - s.p + 1) * s.f)


ENTRIES = (ScheduleEntry("inference", inference, closed_form=KnownForm(_form)),)
