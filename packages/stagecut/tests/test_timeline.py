import pytest
from hypothesis import given
from hypothesis import strategies as st
from stagecut import InvalidInputError, pipeline_time_s
from stagecut.base.held_microbatches import SCHEDULES
from stagecut.plan.timeline import simulate

times = st.lists(st.integers(0, 16).map(float), min_size=1, max_size=6)
schedules = st.sampled_from(sorted(SCHEDULES))


def held_by(schedule, n_stages, n_microbatches):
    return [SCHEDULES[schedule](n_stages - stage, n_microbatches) for stage in range(n_stages)]


@given(times, schedules, st.integers(1, 9))
def test_everything_runs_once_after_what_it_needs_and_within_its_memory(
    stage_s, schedule, n_microbatches
):
    held = held_by(schedule, len(stage_s), n_microbatches)
    stages = simulate(stage_s, held, n_microbatches, forward_share=0.25)
    assert len(stages) == len(stage_s)
    stop = {
        (a.kind, k, a.microbatch): a.stop_s for k, actions in enumerate(stages) for a in actions
    }
    assert len(stop) == sum(map(len, stages)) == 2 * len(stage_s) * n_microbatches
    for k, actions in enumerate(stages):
        now_s, alive = 0.0, 0
        for a in actions:
            share = 0.25 if a.kind == "forward" else 0.75
            assert a.stop_s - a.start_s == pytest.approx(share * stage_s[k])
            assert a.start_s >= now_s
            now_s = a.stop_s
            alive += 1 if a.kind == "forward" else -1
            assert 0 <= alive <= held[k]
            if a.kind == "forward" and k:
                assert stop["forward", k - 1, a.microbatch] <= a.start_s
            if a.kind == "backward":
                before = ("backward", k + 1) if k + 1 < len(stages) else ("forward", k)
                assert stop[*before, a.microbatch] <= a.start_s


@given(times, st.integers(1, 9))
def test_gpipe_takes_what_eq_2_says(stage_s, n_microbatches):
    stages = simulate(stage_s, [n_microbatches] * len(stage_s), n_microbatches)
    end_s = max(actions[-1].stop_s for actions in stages)
    assert end_s == pytest.approx(pipeline_time_s(stage_s, n_microbatches))


@given(st.integers(1, 6), st.integers(1, 9))
def test_1f1b_takes_what_eq_2_says_if_all_stages_take_as_long(n_stages, n_microbatches):
    stages = simulate([3.0] * n_stages, held_by("1f1b", n_stages, n_microbatches), n_microbatches)
    end_s = max(actions[-1].stop_s for actions in stages)
    assert end_s == pytest.approx(pipeline_time_s([3.0] * n_stages, n_microbatches))


@given(times, schedules, st.integers(1, 9))
def test_no_schedule_takes_more_than_eq_2(stage_s, schedule, n_microbatches):
    held = held_by(schedule, len(stage_s), n_microbatches)
    stages = simulate(stage_s, held, n_microbatches)
    end_s = max(actions[-1].stop_s for actions in stages)
    assert end_s <= pipeline_time_s(stage_s, n_microbatches) * (1 + 1e-9)


@pytest.mark.parametrize("in_flight", [(1, 2), (2, 0)])
def test_rejects_stages_that_would_wait_for_each_other(in_flight):
    with pytest.raises(InvalidInputError, match="at most as many as the previous stage; got"):
        simulate((1.0, 1.0), in_flight, 4)
