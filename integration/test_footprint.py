"""Plans take as much memory as was planned, by XLA's account of the compiled programs."""

import frontends.jax
import pytest

frontends.jax.init(8)

from footprint.measure import RUNS, measure  # noqa: E402

TOLERANCE = 0.15
"""The relative difference to the planned memory."""

DAILY = ("gpt, width 512", "4", "zero", 2)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run, marks=[] if run == DAILY else [pytest.mark.nightly])
        for run in RUNS
        if "bfloat16" not in run[0]  # XLA computes bfloat16 in float32 on CPUs
    ],
    ids=lambda run: "-".join(map(str, run)),
)
def test_measured_memory_is_near_the_planned_memory(run):
    for row in measure(*run):
        assert row.live <= row.planned
        assert row.measured == pytest.approx(row.planned, rel=TOLERANCE)
