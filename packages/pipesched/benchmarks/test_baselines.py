"""Schedules beside those of torch.distributed.pipelining: how long to make, and how good?

Eight ranks and 32 microbatches; a whole forward of a rank's stages takes 1 s, each half of its
backward too, a message 0.1 s. Torch's orders are those of its own generators, of all ranks, run on
the sizes alone. Torch makes lists of tuples; `make` makes a `Schedule`, which is frozen and whose
sizes, placement and edges are checked. "makespan", "idle" and "peak" (the most microbatches of a
whole rank's stages that a rank holds, until the weight gradient) are by `simulate` for both.
"search" and "zb-1p" plan for these times, which torch's generators do not know, in the memory of
1F1B and ZB-H1, their baselines; "zb-auto" has no limit.

Torch's 1F1B has no makespan, as `check` refuses its order: it leaves microbatch 0's forward out
on the last rank (torch's runtime for that class does not use it).

Not shown: DualPipe, V-Half, V-Min, ZB-H2, Chimera and eager-1F1B, which torch does not have.
"""

from types import SimpleNamespace

import pytest
from pipesched import (
    Action,
    Costs,
    Kind,
    Placement,
    Schedule,
    ScheduleError,
    make,
    search,
    simulate,
)
from torch.distributed.pipelining import schedules as torch_schedules

N_RANKS = 8
N_MICROBATCHES = 32


def ordered(generator):
    sizes = SimpleNamespace(_num_stages=N_RANKS, _n_microbatches=N_MICROBATCHES)
    return list(generator._get_pipeline_order(sizes).values())


def by_rank(generator, **fields):
    sizes = SimpleNamespace(pp_group_size=N_RANKS, _n_microbatches=N_MICROBATCHES, **fields)
    return [generator._calculate_single_rank_operations(sizes, rank) for rank in range(N_RANKS)]


def looped(generator, n_chunks):
    return by_rank(generator, n_local_stages=n_chunks, microbatches_per_round=N_RANKS)


# By our name: stages a rank, its placement, and torch's generator.
LINEAR, TWICE, V = Placement.linear(N_RANKS), Placement.looped(N_RANKS, 2), Placement.v(N_RANKS)
TORCH = {
    "gpipe": (LINEAR, lambda: ordered(torch_schedules.ScheduleGPipe)),
    "1f1b": (LINEAR, lambda: ordered(torch_schedules.Schedule1F1B)),
    "looped-bfs": (
        TWICE,
        lambda: by_rank(torch_schedules.ScheduleLoopedBFS, _stages=[None] * 2),
    ),
    "interleaved-1f1b": (TWICE, lambda: looped(torch_schedules.ScheduleInterleaved1F1B, 2)),
    "zb-h1": (LINEAR, lambda: looped(torch_schedules.ScheduleInterleavedZeroBubble, 1)),
    "zb-v": (
        V,
        lambda: by_rank(torch_schedules.ScheduleZBVZeroBubble, num_stages=2 * N_RANKS),
    ),
    "dualpipe-v": (V, lambda: by_rank(torch_schedules.ScheduleDualPipeV)),
}


def costs_of(placement):
    parts = placement.n_stages // N_RANKS
    return Costs(1 / parts, 2 / parts, transfer_s=0.1, activation_bytes=1 / parts)


def as_schedule(name, placement, rows):
    """Torch's order; of an overlapped pair, the forward comes first, as torch runs it."""
    ranks = tuple(
        tuple(
            Action(Kind(part.computation_type.value), part.stage_index, part.microbatch_index)
            for action in filter(None, row)
            for part in action.sub_actions or (action,)
            if part.computation_type.value in ("F", "B", "I", "W")
        )
        for row in rows
    )
    return Schedule(name, placement.n_stages, N_MICROBATCHES, ranks, placement)


def note(benchmark, schedule):
    """What a schedule comes to; returns its peak."""
    try:
        timeline = simulate(schedule, costs_of(schedule.placement))
    except ScheduleError as error:
        benchmark.extra_info["makespan"] = f"refused: {error.rule}"
        return None
    benchmark.extra_info["makespan"] = f"{timeline.makespan_s:.4g} s"
    benchmark.extra_info["idle"] = f"{timeline.bubble_ratio:.1%}"
    benchmark.extra_info["peak"] = f"{max(timeline.peak_bytes):g}"
    return timeline


@pytest.mark.parametrize("name", TORCH)
def test_torch(benchmark, name):
    placement, generate = TORCH[name]
    rows = benchmark(generate)
    refused = note(benchmark, as_schedule(name, placement, rows)) is None
    assert refused == (name == "1f1b")


@pytest.mark.parametrize("name", TORCH)
def test_make(benchmark, name):
    placement, generate = TORCH[name]
    schedule = benchmark(make, name, placement.n_stages, N_MICROBATCHES)
    benchmark.extra_info["baseline"] = f"test_torch[{name}]"
    timeline = note(benchmark, schedule)
    assert timeline is not None
    if name != "1f1b":
        theirs = simulate(as_schedule(name, placement, generate()), costs_of(placement))
        assert timeline.makespan_s <= theirs.makespan_s * (1 + 1e-12)


@pytest.mark.parametrize(
    ("baseline", "split"), [("1f1b", False), ("zb-h1", True)], ids=["1f1b", "zb-h1"]
)
def test_search(benchmark, baseline, split):
    costs = costs_of(LINEAR)
    found = benchmark.pedantic(
        search,
        args=(N_RANKS, N_MICROBATCHES, costs),
        kwargs={"activation_cap": N_RANKS, "split_backward": split},
        rounds=5,
    )
    benchmark.extra_info["baseline"] = f"test_torch[{baseline}]"
    ours = note(benchmark, found.schedule)
    plain = simulate(make(baseline, N_RANKS, N_MICROBATCHES), costs)
    assert ours.makespan_s <= plain.makespan_s
    benchmark.extra_info["gap"] = f"{found.gap:.1%}"


@pytest.mark.parametrize("name", ["zb-1p", "zb-auto"])
def test_planned(benchmark, name):
    costs = costs_of(LINEAR)
    schedule = benchmark.pedantic(
        make, args=(name, N_RANKS, N_MICROBATCHES), kwargs={"costs": costs}, rounds=5
    )
    benchmark.extra_info["baseline"] = "test_torch[zb-h1]"
    note(benchmark, schedule)
