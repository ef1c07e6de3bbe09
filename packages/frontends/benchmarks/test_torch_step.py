"""What does a step of eight virtual devices cost in one process, beside the eager step?

Baseline: the same model, loss and AdamW in eager PyTorch, on the whole batch: a GPT of 4 blocks, d
= 256, sequence 128, vocabulary 2048, and 16 examples. Ours are plans for the preset `two-hosts`,
whose devices the process runs in lock-step; `auto` may cut the batch into microbatches. A round is
one step; capturing and planning are left out. Losses of the first step are equal.

Seconds are of CPU time, summed over all threads; wall time is in a column of its own. Not shown:
what a cluster gains, and processes of their own, which `test_torch_ddp.py` measures.
"""

import copy
import statistics
import sys
import time
from pathlib import Path

import frontends.torch as mw
import pytest
import torch
from costmodel import Cluster

sys.path.append(str(Path(__file__).parent))  # the model is there

from torch_ddp import GPT, Sizes, loss_of

SIZES, SMALL = Sizes(256, 4, 128, 2048, 16), Sizes(16, 1, 8, 32, 8)


@pytest.mark.benchmark(timer=time.process_time)
@pytest.mark.parametrize(
    "runtime",
    [
        "eager",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("data_parallel", "megatron")),
        "auto",
    ],
)
def test_torch_step(benchmark, runtime):
    sizes = SMALL if benchmark.disabled else SIZES
    torch.manual_seed(0)
    model = GPT(sizes)
    tokens = torch.randint(0, sizes.vocabulary, (sizes.batch, sizes.sequence))
    single = copy.deepcopy(model)
    optimizer = torch.optim.AdamW((single if runtime == "eager" else model).parameters(), 1e-3)

    def eager():
        optimizer.zero_grad()
        loss = loss_of(single, tokens)
        loss.backward()
        optimizer.step()
        return loss.detach()

    if runtime == "eager":
        step = eager
    else:
        expected = float(loss_of(single, tokens).detach())
        options = {"strategy": runtime, "cluster": Cluster.preset("two-hosts")}
        parallel = mw.parallelize(model, optimizer, loss_of, **options)
        assert float(parallel(tokens)) == pytest.approx(expected, rel=1e-5)
        meshes = " and ".join("x".join(map(str, s.mesh.shape)) for s in parallel.plan.stages)
        benchmark.extra_info["stages on"] = meshes
        benchmark.extra_info["microbatches"] = str(parallel.plan.microbatches)
        benchmark.extra_info["baseline"] = "test_torch_step[eager]"

        def step():
            return parallel(tokens)

    wall_s = []

    def train():
        start_s = time.perf_counter()
        step()
        wall_s.append(time.perf_counter() - start_s)

    benchmark.pedantic(train, rounds=15, warmup_rounds=2)
    benchmark.extra_info["wall time"] = f"{statistics.median(wall_s) * 1e3:.0f} ms"
