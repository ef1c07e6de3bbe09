import pytest
from pipesched import NAMES, Costs, Placement, UnknownScheduleError, check, make, simulate

SIZES = [(n_stages, n_microbatches) for n_stages in range(1, 9) for n_microbatches in range(1, 17)]


@pytest.mark.parametrize("name", NAMES)
def test_every_schedule_passes_the_checker(name: str) -> None:
    for sizes in SIZES:
        check(make(name, *sizes))


@pytest.mark.parametrize("name", NAMES)
def test_stage_i_is_on_rank_i(name: str) -> None:
    for n_stages, n_microbatches in SIZES:
        assert make(name, n_stages, n_microbatches).placement == Placement.linear(n_stages)


@pytest.mark.parametrize(
    ("name", "in_flight"),
    [
        ("gpipe", lambda n_stages, stage: 10**6),
        ("1f1b", lambda n_stages, stage: n_stages - stage),
        ("eager-1f1b", lambda n_stages, stage: 2 * (n_stages - stage - 1) + 1),
    ],
    ids=NAMES,
)
def test_in_flight_microbatches_are_the_papers(name, in_flight) -> None:
    for n_stages, n_microbatches in SIZES:
        timeline = simulate(make(name, n_stages, n_microbatches), Costs(1.0, 2.0))
        assert timeline.peak_in_flight == tuple(
            min(in_flight(n_stages, stage), n_microbatches) for stage in range(n_stages)
        )


@pytest.mark.parametrize("name", NAMES)
def test_a_schedule_carries_its_name(name: str) -> None:
    assert make(name, 2, 3).name == name


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownScheduleError, match="one of gpipe, 1f1b, eager-1f1b; got name='x'"):
        make("x", 1, 1)
