from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipesched import ArgumentError, Costs, Schedule, draw, eager_1f1b, gpipe, one_f_one_b, simulate
from pipesched.testing import schedules

COSTS = Costs(1.0, 2.0, transfer_s=0.5)


def bars(text: str) -> list[str]:
    return [line.split("|")[1] for line in text.splitlines()[1:]]


def test_drawing_is_the_golden_one(check_golden: Callable[[str, str], None]) -> None:
    check_golden("timeline_eager_1f1b_4x8.txt", draw(simulate(eager_1f1b(4, 8), COSTS)))


@given(schedules(), st.integers(1, 200))
def test_every_rank_has_a_bar_of_the_width(schedule: Schedule, width: int) -> None:
    drawn = bars(draw(simulate(schedule, COSTS), width))
    assert [len(bar) for bar in drawn] == [width] * len(schedule.ranks)


@given(schedules())
def test_at_one_column_a_second_blanks_are_idle_seconds(schedule: Schedule) -> None:
    timeline = simulate(schedule, Costs(1.0, 2.0, transfer_s=3.0))
    drawn = bars(draw(timeline, int(timeline.makespan_s)))
    assert tuple(bar.count(" ") for bar in drawn) == timeline.bubble_s


def test_numbers_appear_where_they_fit() -> None:
    timeline = simulate(gpipe(1, 11), Costs(1.0, 1.0))
    assert bars(draw(timeline, 22)) == ["0123456789░" + "0123456789▓"]
    assert bars(draw(timeline, 44))[0].endswith("9▓10")


def test_a_longer_span_leaves_the_rest_blank() -> None:
    timeline = simulate(gpipe(1, 1), Costs(1.0, 1.0))
    assert bars(draw(timeline, 8, span_s=4.0)) == ["0░0▓    "]


def test_a_timeline_without_time_is_drawn_blank() -> None:
    assert bars(draw(simulate(one_f_one_b(2, 1), Costs(0.0, 0.0)), 3)) == ["   ", "   "]


@pytest.mark.parametrize("arguments", [(0,), (10, 1.0)])
def test_a_drawing_that_cannot_hold_the_timeline_is_refused(arguments: tuple[float, ...]) -> None:
    with pytest.raises(ArgumentError, match="one column and spans the whole timeline; got"):
        draw(simulate(gpipe(1, 1), Costs(1.0, 1.0)), *arguments)
