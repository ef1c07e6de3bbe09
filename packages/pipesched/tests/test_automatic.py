import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipesched import (
    ArgumentError,
    Costs,
    InfeasibleError,
    Schedule,
    Timeline,
    check,
    make,
    simulate,
    zb_auto,
)

HANDCRAFTED = ("zb-h1", "zb-h2")

seconds = st.integers(1, 9).map(float)


@st.composite
def problems(draw: st.DrawFn) -> tuple[tuple[int, int], Costs]:
    """Sizes, and costs whose sums are exact."""
    n_stages = draw(st.integers(1, 5))
    per_stage = st.lists(seconds, min_size=n_stages, max_size=n_stages)
    costs = Costs(
        draw(per_stage),
        input_gradient_s=draw(per_stage),
        weight_gradient_s=draw(per_stage),
        transfer_s=draw(st.integers(0, 3)),
        latency_s=draw(st.integers(0, 3)),
        activation_bytes=4,
        weight_gradient_bytes=draw(st.integers(0, 6)),
        parameter_bytes=draw(st.integers(0, 8)),
    )
    return (n_stages, draw(st.integers(1, 12))), costs


def longest_span_s(timeline: Timeline) -> float:
    spans = []
    for rank in range(len(timeline.schedule.ranks)):
        events = [event for event in timeline.events if event.rank == rank]
        spans.append(events[-1].stop_s - events[0].start_s)
    return max(spans)


def split_1f1b(schedule: Schedule) -> Schedule:
    """Each whole backward as an input gradient and, at once, a weight gradient."""
    text = str(schedule).replace(" B", " I")
    rows = text.splitlines()
    for number, row in enumerate(rows[1:], 1):
        head, *items = row.split(" ")
        halves = (f"{a} W{a[1:]}" if a.startswith("I") else a for a in items)
        rows[number] = " ".join([head, *halves])
    return Schedule.parse("\n".join(rows))


@settings(max_examples=max(100, settings().max_examples // 5))
@given(problems(), st.data())
def test_keeps_within_the_memory(
    problem: tuple[tuple[int, int], Costs], data: st.DataObject
) -> None:
    sizes, costs = problem
    needed = costs.parameter_bytes + max(4, costs.weight_gradient_bytes)
    per_rank = st.integers(needed, needed + 40)
    bound = data.draw(per_rank | st.lists(per_rank, min_size=sizes[0], max_size=sizes[0]))
    schedule = zb_auto(*sizes, costs=costs, memory_bytes=bound)
    check(schedule)
    bounds = bound if isinstance(bound, list) else [bound] * sizes[0]
    for peak_bytes, most in zip(simulate(schedule, costs).peak_bytes, bounds, strict=True):
        assert peak_bytes <= most


@settings(max_examples=max(50, settings().max_examples // 5))
@given(problems())
def test_is_never_slower_than_the_handcrafted_orders_in_the_same_memory(
    problem: tuple[tuple[int, int], Costs],
) -> None:
    sizes, costs = problem
    candidates = [make(name, *sizes) for name in HANDCRAFTED] + [split_1f1b(make("1f1b", *sizes))]
    for candidate in candidates:
        timeline = simulate(candidate, costs)
        bounds = timeline.peak_bytes
        found = simulate(zb_auto(*sizes, costs=costs, memory_bytes=bounds), costs)
        assert found.makespan_s <= timeline.makespan_s
        found = simulate(zb_auto(*sizes, costs=costs, memory_bytes=bounds, by_span=True), costs)
        assert longest_span_s(found) <= longest_span_s(timeline)


@pytest.mark.parametrize(
    ("sizes", "f", "i", "w", "transfer_s", "weight_part", "zb_1p", "zb_2p"),
    [
        ((8, 24), 18.522, 18.086, 9.337, 0.601, 0.37, 0.1585, 0.0433),
        ((8, 32), 18.513, 18.086, 9.331, 0.626, 0.37, 0.1242, 0.0039),
        ((8, 24), 29.718, 29.444, 19.927, 0.527, 0.43, 0.1323, 0.0029),
        ((8, 64), 29.935, 29.621, 19.388, 0.535, 0.43, 0.0554, 0.0010),
        ((16, 48), 11.347, 11.248, 8.132, 0.377, 0.43, 0.1397, 0.0066),
    ],
    ids=["1.5B, 24", "1.5B, 32", "6.2B, 24", "6.2B, 64", "14.6B, 48"],
)
def test_bubble_rates_are_at_most_those_of_the_paper(
    sizes: tuple[int, int],
    f: float,
    i: float,
    w: float,
    transfer_s: float,
    weight_part: float,
    zb_1p: float,
    zb_2p: float,
) -> None:
    """Qi et al., ICLR 2024: table 5, with the times of table 9 and the memory of table 1."""
    costs = Costs(
        f,
        input_gradient_s=i,
        weight_gradient_s=w,
        latency_s=transfer_s,
        weight_gradient_bytes=weight_part,
    )
    for cap, rate in ((sizes[0], zb_1p), (2 * sizes[0], zb_2p)):
        schedule = zb_auto(*sizes, costs=costs, activation_cap=cap, by_span=True)
        span_s = longest_span_s(simulate(schedule, costs))
        assert 1 - sizes[1] * (f + i + w) / span_s <= rate + 0.0005


def test_zb_1p_is_as_fast_as_zb_h1_in_the_memory_of_1f1b() -> None:
    costs = Costs(1.0, 2.0)
    timeline = simulate(make("zb-1p", 4, 8), costs)
    assert timeline.makespan_s == simulate(make("zb-h1", 4, 8), costs).makespan_s == 27.0
    assert max(timeline.peak_bytes) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation_cap": 2, "memory_bytes": 2}, "in microbatches or in bytes, not in both"),
        ({"activation_cap": [2]}, "or one for each of 2; got 1 numbers"),
    ],
)
def test_bounds_that_cannot_be_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make("zb-auto", 2, 4, **options)


def test_a_bound_without_room_for_a_microbatch_is_refused() -> None:
    costs = Costs(1.0, 2.0, activation_bytes=8, parameter_bytes=[4, 5])
    with pytest.raises(InfeasibleError, match=r"8 bytes on rank 1; got .*, which leaves 7 bytes"):
        make("zb-auto", 2, 4, costs=costs, memory_bytes=12)
