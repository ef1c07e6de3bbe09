"""Two thousand steps of a pipeline in one process end, and the compared steps equal one device."""

import frontends.jax as mw
import jax
import numpy as np
import pytest
from costmodel import Cluster
from zoo import gpt

mw.init(8)

STEPS = 2_000
COMPARED = {0, 1, 10, 100, 1_000, STEPS - 1}
"""Steps that one device takes, too, from the state that the pipeline has reached."""

TOLERANCE = 1e-5
"""Accepted difference after one step from equal weights, relative to each array's largest
element."""

LEAST = 1e-3
"""Arrays with a smaller magnitude are compared as if they had this one: a bias of keys, which
softmax cancels, moves by roundings only."""


@pytest.mark.nightly
def test_a_pipeline_on_eight_devices_trains_for_two_thousand_steps():
    example = gpt.make(gpt.CONFIGS["gpt-tiny"], batch=16)
    step = mw.parallelize(
        example.step,
        cluster=Cluster.preset("two-hosts").resized(n_hosts=2, devices_per_host=4),
        strategy="equal_layers",
        microbatches=4,
    )
    single, init = jax.jit(example.step), jax.jit(example.init)
    *state, batch = init(jax.random.key(0))
    losses = []
    for number in range(STEPS):
        if number in COMPARED:
            expected = single(*jax.tree.map(np.asarray, state), batch)
        *state, loss = step(*state, batch)
        losses.append(float(loss))
        if number in COMPARED:
            # A loss near 0 is a difference of numbers near 1.
            assert losses[-1] == pytest.approx(float(expected[-1]), rel=TOLERANCE, abs=1e-6)
            for ours, theirs in zip(*map(jax.tree.leaves, (state[0], expected[0])), strict=True):
                a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
                assert np.abs(a - b).max() < TOLERANCE * max(np.abs(b).max(), LEAST)
    assert [len(stage.mesh.device_ids) for stage in step.plan.stages] == [4, 4]
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.1 * losses[0], "one batch is learned by heart"
