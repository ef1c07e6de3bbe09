"""Our schedules have the same orders as torch's generators, if torch has the schedule."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pipesched import Schedule, make
from torch.distributed.pipelining import schedules as torch_schedules

SIZES = [(n_ranks, n_microbatches) for n_ranks in range(1, 9) for n_microbatches in range(1, 33)]


def of_torch(rows: Any) -> list[list[tuple[str, int, int]]]:
    """(kind, stage, microbatch) of each rank's actions; an overlapped pair has its forward
    first."""

    def flat(row: Any) -> Iterator[tuple[str, int, int]]:
        for action in filter(None, row):
            for part in action.sub_actions or (action,):
                if part.computation_type.value != "REDUCE_GRAD":
                    yield part.computation_type.value, part.stage_index, part.microbatch_index

    return [list(flat(row)) for row in rows]


def of(schedule: Schedule) -> list[list[tuple[str, int, int | None]]]:
    return [[(a.kind.value, a.stage, a.microbatch) for a in row] for row in schedule.ranks]


def rows_of(generator: Any, n_ranks: int, **fields: Any) -> Any:
    """The actions of each rank by torch's generator, which needs no stages and no processes
    here."""
    sizes = SimpleNamespace(pp_group_size=n_ranks, **fields)
    return [generator._calculate_single_rank_operations(sizes, rank) for rank in range(n_ranks)]


@pytest.mark.parametrize(
    ("name", "generator", "n_ranks_compared"),
    [
        ("gpipe", torch_schedules.ScheduleGPipe, lambda n_ranks: n_ranks),
        # On the last rank, torch's order omits microbatch 0; see test_schedules_in_torch.py.
        ("1f1b", torch_schedules.Schedule1F1B, lambda n_ranks: n_ranks - 1),
    ],
    ids=["gpipe", "1f1b"],
)
def test_schedules_with_one_stage_a_rank_have_torchs_order(
    name: str, generator: Any, n_ranks_compared: Any
) -> None:
    for n_ranks, n_microbatches in SIZES:
        if name == "1f1b" and n_microbatches < n_ranks:
            continue  # torch would run microbatches that do not exist
        sizes = SimpleNamespace(_num_stages=n_ranks, _n_microbatches=n_microbatches)
        theirs = of_torch(generator._get_pipeline_order(sizes).values())
        compared = slice(n_ranks_compared(n_ranks))
        assert of(make(name, n_ranks, n_microbatches))[compared] == theirs[compared]


@pytest.mark.parametrize("n_chunks", range(1, 5))
def test_looped_bfs_has_torchs_order(n_chunks: int) -> None:
    for n_ranks, n_microbatches in SIZES:
        theirs = rows_of(
            torch_schedules.ScheduleLoopedBFS,
            n_ranks,
            _stages=[None] * n_chunks,
            _n_microbatches=n_microbatches,
        )
        ours = make("looped-bfs", n_ranks * n_chunks, n_microbatches, n_chunks=n_chunks)
        assert of(ours) == of_torch(theirs)


def looped(generator: Any, n_ranks: int, n_microbatches: int, n_chunks: int) -> Any:
    """The actions by torch's generators for groups of microbatches; None for sizes they refuse."""
    n_rounds = max(1, n_microbatches // n_ranks)
    if n_microbatches % n_rounds:
        return None
    return rows_of(
        generator,
        n_ranks,
        n_local_stages=n_chunks,
        _n_microbatches=n_microbatches,
        microbatches_per_round=n_microbatches // n_rounds,
    )


@pytest.mark.parametrize("n_chunks", range(1, 5))
def test_interleaved_1f1b_has_torchs_order(n_chunks: int) -> None:
    for n_ranks, n_microbatches in SIZES:
        theirs = looped(torch_schedules.ScheduleInterleaved1F1B, n_ranks, n_microbatches, n_chunks)
        if theirs is not None:
            ours = make("interleaved-1f1b", n_ranks * n_chunks, n_microbatches, n_chunks=n_chunks)
            assert of(ours) == of_torch(theirs)


def test_zb_h1_is_the_interleaved_zero_bubble_schedule_with_one_chunk() -> None:
    for sizes in SIZES:
        theirs = looped(torch_schedules.ScheduleInterleavedZeroBubble, *sizes, n_chunks=1)
        if theirs is not None:
            assert of(make("zb-h1", *sizes)) == of_torch(theirs)


def test_zb_v_has_torchs_order() -> None:
    for n_ranks, n_microbatches in SIZES:
        theirs = rows_of(
            torch_schedules.ScheduleZBVZeroBubble,
            n_ranks,
            _n_microbatches=n_microbatches,
            num_stages=2 * n_ranks,
        )
        assert of(make("zb-v", 2 * n_ranks, n_microbatches)) == of_torch(theirs)


def test_dualpipe_v_has_torchs_order() -> None:
    for n_ranks, n_microbatches in SIZES:
        if n_microbatches >= 2 * n_ranks:
            theirs = rows_of(
                torch_schedules.ScheduleDualPipeV, n_ranks, _n_microbatches=n_microbatches
            )
            assert of(make("dualpipe-v", 2 * n_ranks, n_microbatches)) == of_torch(theirs)
