"""What does a step of the parallel runtime cost beside the plain step on one device?

Baseline: the same function under `jax.jit`, on one device of the same process. The default GPT (4
blocks, d = 128, sequence 128) trains on a batch of 16 in 8 microbatches, by the plan found for the
preset `two-hosts`. A round is one step; compiling is left out. The losses of the first step are
equal to 1e-5.

Not shown: what a cluster gains. The virtual devices share the cores that the single device has to
itself. In time, what microbatches, transfers and collectives cost is set against the cores that
XLA's one program leaves idle, and eight devices' threads get more of a busy machine than one's: the
ratio changes with what else runs. CPU time, the median over rounds of the sum over all threads,
changes less; it is what the step costs.
"""

import statistics
import time

import jax
import pytest
from frontends.jax import parallelize


@pytest.mark.parametrize("runtime", ["single", "parallel"])
def test_step(benchmark, job, runtime):
    step = single = jax.jit(job.function)
    if runtime == "parallel":
        options = {"microbatches": job.microbatches, "n_layers": job.n_layers}
        step = parallelize(job.function, cluster=job.cluster, strategy=job.strategy, **options)
    *state, loss = step(*job.arguments)
    assert float(loss) == pytest.approx(float(single(*job.arguments)[-1]), rel=1e-5)

    cpu_s = []

    def train():
        nonlocal state
        start_s = time.process_time()
        *state, _ = jax.block_until_ready(step(*state, job.arguments[-1]))
        cpu_s.append(time.process_time() - start_s)

    benchmark.pedantic(train, rounds=15, warmup_rounds=2)

    benchmark.extra_info["CPU time"] = f"{statistics.median(cpu_s) * 1e3:.0f} ms"
    if runtime == "parallel":
        meshes = " and ".join("x".join(map(str, s.mesh.shape)) for s in step.plan.stages)
        benchmark.extra_info["stages on"] = meshes
        benchmark.extra_info["baseline"] = "test_step[single]"
