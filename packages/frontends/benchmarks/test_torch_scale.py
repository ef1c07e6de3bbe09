"""How long does it take to plan models of PyTorch, from the meta device?

Models of transformers at their published sizes, none of whose weights exist, are captured and
planned in 8 microbatches as `plan_for` does, for hosts of eight H100 (h100-sxm): GPT-2 small (12
blocks) for one host, Llama-3-8B for eight. Baseline: GPT-2. AutoParallel, which plans no stages,
publishes 47 s for Llama-3-8B. Each round starts with empty caches, as a new process does; making
the model is not counted.

Not shown: microbatches that are searched, level O3, and whether the predicted steps come true.
"""

import resource

import frontends.torch
import pytest
from costmodel import Cluster
from frontends.cli.demo.torch_models import TORCH_MODELS
from frontends.torch.capture.capture import training_step

MODELS = {"gpt2": "h100-sxm:1", "llama-3-8b": "h100-sxm:8"}
MOST_BYTES = 6 * 2**30


@pytest.mark.parametrize("name", ["gpt2", pytest.param("llama-3-8b", marks=pytest.mark.nightly)])
def test_plan_torch(benchmark, forget, name):
    choice = TORCH_MODELS["llama-tiny" if benchmark.disabled else name]
    model, optimizer, loss_fn, batch = choice.make({})
    cluster = Cluster.preset(MODELS[name])

    def plan():
        step = training_step(loss_fn)
        return frontends.torch.plan_for(step, model, optimizer, batch, cluster, microbatches=8)

    planned = benchmark.pedantic(plan, setup=forget, rounds=3)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert peak < MOST_BYTES
    assert planned.plan.lower_bound_s <= planned.plan.step_s
    benchmark.extra_info["peak memory"] = f"{peak / 2**30:.2f} GiB"
    benchmark.extra_info["predicted step"] = f"{planned.plan.step_s:.2f} s"
    benchmark.extra_info["over its bound"] = (
        f"{planned.plan.step_s / planned.plan.lower_bound_s:.2f}"
    )
    if name != "gpt2":
        benchmark.extra_info["baseline"] = "test_plan_torch[gpt2]"
