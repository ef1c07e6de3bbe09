import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipesched import (
    ArgumentError,
    Costs,
    Kind,
    Schedule,
    draw,
    eager_1f1b,
    gpipe,
    legend,
    make,
    one_f_one_b,
    simulate,
    with_communication,
)
from pipesched.report.style import LOOKS
from pipesched.testing import schedules, steps

COSTS = Costs(1.0, 2.0, transfer_s=0.5, reduce_s=1.0, update_s=2.0)


def bars(text: str) -> list[str]:
    return [line.split("|")[1] for line in text.splitlines()[1:]]


@pytest.mark.parametrize("name", ["eager-1f1b", "dualpipe"])
def test_drawing_is_the_golden_one(name: str, check_golden: Callable[[str, str], None]) -> None:
    text = draw(simulate(make(name, 4, 8), COSTS))
    check_golden(f"timeline_{name.replace('-', '_')}_4x8.txt", text)


@given(steps(), st.integers(1, 200))
def test_every_stage_of_a_rank_has_a_bar_of_the_width(schedule: Schedule, width: int) -> None:
    drawn = bars(draw(simulate(schedule, COSTS), width))
    n_stages = [len(schedule.placement.stages_of(r)) for r in range(len(schedule.ranks))]
    assert [len(bar) for bar in drawn] == [width] * sum(max(1, n) for n in n_stages)


@given(steps())
def test_at_one_column_a_second_blanks_are_idle_seconds(schedule: Schedule) -> None:
    timeline = simulate(schedule, Costs(1.0, 2.0, transfer_s=3.0, reduce_s=1.0, update_s=2.0))
    drawn = draw(timeline, int(timeline.makespan_s)).splitlines()[1:]
    of_rank: list[list[str]] = []
    for line in drawn:
        if line.startswith("rank"):
            of_rank.append([])
        of_rank[-1].append(line.split("|")[1])
    busy = [sum(len(bar) - bar.count(" ") for bar in rows) for rows in of_rank]
    assert tuple(busy) == timeline.busy_s


@given(schedules())
def test_what_a_row_shows_is_of_its_stage(schedule: Schedule) -> None:
    timeline = simulate(schedule, Costs(1.0, 2.0))
    drawn = draw(timeline, 4 * int(timeline.makespan_s)).splitlines()[1:]
    for line in drawn:
        if named := re.search(r"stage (\d+) +\|", line):
            forwards = line.split("|")[1].count(LOOKS[Kind.FORWARD].fill)
            # A forward has 4 columns; its number takes one or two.
            assert forwards >= 2 * schedule.n_microbatches
            assert int(named[1]) < schedule.n_stages


def test_numbers_appear_where_they_fit() -> None:
    timeline = simulate(gpipe(1, 11), Costs(1.0, 1.0))
    assert bars(draw(timeline, 22)) == ["0123456789░" + "0123456789▓"]
    assert bars(draw(timeline, 44))[0].endswith("9▓10")


def test_a_longer_span_leaves_the_rest_blank() -> None:
    timeline = simulate(gpipe(1, 1), Costs(1.0, 1.0))
    assert bars(draw(timeline, 8, span_s=4.0)) == ["0░0▓    "]


def test_a_timeline_without_time_is_drawn_blank() -> None:
    assert bars(draw(simulate(one_f_one_b(2, 1), Costs(0.0, 0.0)), 3)) == ["   ", "   "]


def test_every_kind_has_a_fill_of_its_own() -> None:
    assert len({look.fill for look in LOOKS.values()}) == len(LOOKS) == len(Kind) - 1


def test_sends_that_take_the_rank_are_drawn() -> None:
    blocking = Costs(1.0, 1.0, transfer_s=1.0, overlap=False)
    timeline = simulate(with_communication(one_f_one_b(2, 1)), blocking)
    assert bars(draw(timeline, 12)) == ["0░0>      0▓", "    0░0▓0>  "]


def test_the_legend_is_of_what_is_drawn() -> None:
    timelines = [simulate(eager_1f1b(2, 2), COSTS), simulate(make("zb-h1", 2, 2), COSTS)]
    assert (
        legend(timelines[0])
        == "░░ forward, ▓▓ backward; a cell starts with its microbatch's number"
    )
    both = legend(*timelines)
    assert [name in both for name in ("backward", "input gradient", "reduce")] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("arguments", [(0,), (10, 1.0)])
def test_a_drawing_that_cannot_hold_the_timeline_is_refused(arguments: tuple[float, ...]) -> None:
    with pytest.raises(
        ArgumentError, match="one column, and its span contains the whole timeline; got"
    ):
        draw(simulate(gpipe(1, 1), Costs(1.0, 1.0)), *arguments)
