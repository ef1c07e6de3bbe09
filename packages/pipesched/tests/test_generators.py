from collections import Counter
from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipesched import (
    NAMES,
    ArgumentError,
    Costs,
    Kind,
    Placement,
    Schedule,
    UnknownScheduleError,
    check,
    make,
    schedule_entry,
    simulate,
)
from pipesched.testing import LINEAR, made, sizes_of

CHUNKED = [name for name in NAMES if "n_chunks" in schedule_entry(name).options]
V_SHAPED = ("zb-v", "v-half", "v-min", "dualpipe-v")
BOTH_WAYS = ("dualpipe", "chimera")


@pytest.mark.parametrize("name", NAMES)
def test_every_schedule_passes_the_checker(name: str) -> None:
    sizes = sizes_of(name, 8, 17)
    assert sizes
    for size in sizes:
        check(make(name, *size))


@settings(max_examples=max(100, settings().max_examples // 5))
@given(
    st.sampled_from(CHUNKED),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 20),
    st.none() | st.integers(1, 8),
)
def test_looped_schedules_of_any_group_pass_the_checker(
    name: str, n_ranks: int, n_chunks: int, n_microbatches: int, group_size: int | None
) -> None:
    options = {"group_size": group_size} if "group_size" in schedule_entry(name).options else {}
    schedule = make(name, n_ranks * n_chunks, n_microbatches, n_chunks=n_chunks, **options)
    check(schedule)
    assert schedule.placement == Placement.looped(n_ranks, n_chunks)


@settings(max_examples=max(100, settings().max_examples // 5))
@given(st.data(), st.integers(1, 8), st.integers(1, 16))
def test_eager_1f1b_holds_the_depth_that_is_asked_for(
    data: st.DataObject, n_stages: int, n_microbatches: int
) -> None:
    some = st.lists(st.integers(1, 12), min_size=n_stages, max_size=n_stages)
    depth = sorted(data.draw(some), reverse=True)
    schedule = make("eager-1f1b", n_stages, n_microbatches, depth=depth)
    check(schedule)
    assert simulate(schedule, Costs(1.0, 2.0)).peak_in_flight == tuple(
        min(warm_up, n_microbatches) for warm_up in depth
    )


@pytest.mark.parametrize(
    ("names", "placement"),
    [
        ((*LINEAR, "zb-h1", "zb-h2"), lambda n_stages, n_microbatches: Placement.linear(n_stages)),
        (V_SHAPED, lambda n_stages, n_microbatches: Placement.v(n_stages // 2)),
        (BOTH_WAYS, Placement.bidirectional),
    ],
    ids=["linear", "v", "bidirectional"],
)
def test_placements(names: tuple[str, ...], placement: Callable[[int, int], Placement]) -> None:
    for name in names:
        for sizes in sizes_of(name, 8, 8):
            assert make(name, *sizes).placement == placement(*sizes)


@given(made())
def test_a_stage_takes_the_microbatches_of_a_route_in_one_order(schedule: Schedule) -> None:
    """So that the transfers of an edge keep theirs: the backwards' may be another than F's."""
    for row in schedule.ranks:
        for kind, stage in product(Kind, range(schedule.n_stages)):
            taken = [a.microbatch for a in row if (a.kind, a.stage) == (kind, stage)]
            assert taken in (sorted(taken), sorted(taken, reverse=True))


@given(made())
def test_backwards_are_whole_or_in_two_parts(schedule: Schedule) -> None:
    kinds = Counter(action.kind for row in schedule.ranks for action in row)
    n_items = schedule.n_stages * schedule.n_microbatches
    assert kinds[Kind.FORWARD] == n_items
    assert kinds[Kind.INPUT_GRADIENT] == kinds[Kind.WEIGHT_GRADIENT]
    n_backwards = kinds[Kind.BACKWARD] + kinds[Kind.INPUT_GRADIENT]
    assert n_backwards == (n_items if schedule.backward else 0)


@pytest.mark.parametrize("name", NAMES)
def test_ours_could_be_registered(name: str) -> None:
    schedule_entry(name).check()


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownScheduleError, match=r"one of gpipe, 1f1b, eager-1f1b, .*; got name"):
        make("x", 1, 1)


@pytest.mark.parametrize(
    ("name", "sizes", "options", "message"),
    [
        ("gpipe", (2, 1), {"depth": [1]}, "the options of gpipe are none; got depth"),
        ("inference", (2, 1), {"n": 1}, "options of inference are n_chunks, group_size; got n"),
        ("1f1b", (0, 1), {}, "at least one stage and one microbatch; got n_stages=0"),
        ("eager-1f1b", (2, 4), {"depth": [1]}, r"one number for each stage.*got depth=\[1\]"),
        ("eager-1f1b", (2, 4), {"depth": [0, 0]}, "at least 1"),
        ("eager-1f1b", (2, 4), {"depth": [2, 3]}, "at most that of the previous stage"),
        ("interleaved-1f1b", (3, 4), {}, "n_stages is a multiple of n_chunks; got n_stages=3"),
        (
            "interleaved-1f1b",
            (2, 4),
            {"group_size": 0},
            "at least one microbatch; got group_size=0",
        ),
        ("zb-v", (3, 4), {}, "n_stages is a multiple of n_chunks; got n_stages=3 and n_chunks=2"),
        ("dualpipe", (4, 6), {}, "at least 2 n_stages; got n_stages=4 and n_microbatches=6"),
        ("dualpipe", (4, 9), {}, "n_microbatches are even"),
        ("dualpipe", (3, 12), {}, "n_stages and n_microbatches are even"),
        ("dualpipe-v", (4, 3), {}, "n_microbatches is at least n_stages; got n_stages=4"),
        ("chimera", (3, 6), {}, "an even number of stages.*got n_stages=3"),
    ],
)
def test_sizes_without_a_schedule_are_refused(
    name: str, sizes: tuple[int, int], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        make(name, *sizes, **options)


def test_interleaving_one_chunk_is_eager_1f1b() -> None:
    for sizes in sizes_of("eager-1f1b", 6, 12):
        interleaved = make("interleaved-1f1b", *sizes, n_chunks=1)
        assert interleaved.ranks == make("eager-1f1b", *sizes).ranks


def test_depth_of_1f1b_makes_eager_1f1b_the_same() -> None:
    assert (
        make("eager-1f1b", 4, 9, depth=[4, 3, 2, 1]).ranks == make("1f1b", 4, 9).ranks
    )  # the paper: it "is based on 1F1B but shifts forward"


@settings(max_examples=max(100, settings().max_examples // 5))
@given(st.integers(2, 8), st.integers(2, 4), st.integers(0, 4), st.integers(1, 4), st.data())
def test_warm_ups_are_those_of_megatron(
    n_ranks: int, n_chunks: int, more: int, n_groups: int, data: st.DataObject
) -> None:
    """Megatron-LM core, schedules.py, `get_pp_rank_microbatches`, for the sizes that it takes: all
    groups but the last of group_size, and none of fewer microbatches than ranks."""
    group_size = n_ranks + more
    last = data.draw(st.integers(n_ranks, group_size)) if n_groups > 1 else group_size
    n_microbatches = group_size * (n_groups - 1) + last
    schedule = make(
        "interleaved-1f1b",
        n_ranks * n_chunks,
        n_microbatches,
        n_chunks=n_chunks,
        group_size=group_size,
    )
    for rank, row in enumerate(schedule.ranks):
        first = next(i for i, action in enumerate(row) if action.kind is Kind.BACKWARD)
        warm_up = 2 * (n_ranks - rank - 1) + (n_chunks - 1) * group_size
        # In the steady state Megatron runs a forward and then a backward, so one forward more.
        assert first == min(warm_up + 1, n_chunks * n_microbatches)
