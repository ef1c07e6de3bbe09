"""What does a step of the parallel runtime cost beside the plain step on one device?

Baseline: the same function under `jax.jit`, on one device of the same process. The default GPT (4
blocks, d = 128, sequence 128) trains on a batch of 16 in 8 microbatches, by the plan found for the
preset `two-hosts`. A round is one step; compiling is left out. The losses of the first step are
equal to 1e-5. `eight_small` runs the plain step on each eighth of the batch in turn, with an update
after each: it tells how much of the difference is due to smaller arrays alone.

Seconds are of CPU time, summed over all threads. Wall time, in the last column, is not fit to be
compared: the virtual devices share their cores with one another and with whatever else runs, and
the ratio comes out on either side of 1. Not shown: what a cluster gains.
"""

import statistics
import time

import jax
import numpy as np
import pytest
from frontends.jax import parallelize


@pytest.mark.benchmark(timer=time.process_time)
@pytest.mark.parametrize("runtime", ["single", "eight_small", "parallel"])
def test_step(benchmark, job, runtime):
    step = single = jax.jit(job.function)
    *state, batch = job.arguments
    batches = [batch]
    if runtime == "eight_small":
        batches = [jax.tree.map(lambda x, i=i: np.split(x, 8)[i], batch) for i in range(8)]
    if runtime == "parallel":
        options = {"microbatches": job.microbatches, "n_layers": job.n_layers}
        step = parallelize(job.function, cluster=job.cluster, strategy=job.strategy, **options)
    losses = [float(step(*state, part)[-1]) for part in batches]
    assert np.mean(losses) == pytest.approx(float(single(*job.arguments)[-1]), rel=1e-5)

    wall_s = []

    def train():
        nonlocal state
        start_s = time.perf_counter()
        for part in batches:
            *state, _ = jax.block_until_ready(step(*state, part))
        wall_s.append(time.perf_counter() - start_s)

    benchmark.pedantic(train, rounds=15, warmup_rounds=2)

    benchmark.extra_info["wall time"] = f"{statistics.median(wall_s) * 1e3:.0f} ms"
    if runtime != "single":
        benchmark.extra_info["baseline"] = "test_step[single]"
    if runtime == "parallel":
        meshes = " and ".join("x".join(map(str, s.mesh.shape)) for s in step.plan.stages)
        benchmark.extra_info["stages on"] = meshes
