"""How long does it take to plan models of the papers' sizes, and how does that grow?

Each model of the zoo is planned for hosts of eight V100 (p3.16xlarge) as `plan_for` does, tracing
included, with the usual plans priced beside it. `moe-70b` is planned for 32 GiB a device, as its
state and gradients are 1.13 TB and 64 devices of 16 GiB have 1.10. `gpt, N layers` is GPT-39B's
block at a width of 4,096, N times. Baseline: GPT-2.6B on one host. Alpa takes 2,393 s for GPT-39B
on 64 devices (Alpa Table 5). Each round starts with empty caches, as a new process does.

`gpt-39b, searched` is what the command `plan` does if it is not told a number of microbatches; it
may take a minute.

`level O3` searches each stage of the deepest on its own, once; "O2 predicts" is how much longer a
step the quick level's plan has.

Not shown: whether the predicted steps come true on such a cluster.
"""

import resource
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "integration"))  # the zoo is there

from costmodel import Cluster
from frontends.jax import plan_for
from zoo import gpt
from zoo.cases import FULL, SMALL, Case

HOSTS = Cluster.preset("p3.16xlarge:8")
MOST_BYTES = 6 * 2**30
MOST_SEARCHED_S = 60.0
"""Of processor time, for GPT-39B with its microbatches."""


def deep(n_layers):
    """A GPT of so many layers, on 64 devices."""
    config = replace(gpt.CONFIGS["gpt-39b"], n_layers=n_layers, width=4096, n_heads=32)
    arguments = {"batch": 1024, "dtype": "float16", "remat": True}
    return gpt.make(config, **arguments), HOSTS, 64, None


def planned(name):
    case: Case = FULL[name]
    return case.example(), case.cluster, case.microbatches, case.memory_bytes


def searched(name):
    """The same in as many microbatches as are fastest."""
    example, cluster, _, memory_bytes = planned(name)
    return example, cluster, None, memory_bytes


def small():
    """What is planned where nothing is measured."""
    case = SMALL["gpt"]
    return case.example(), case.cluster, case.microbatches, None


MODELS = {
    **{name: (planned, name) for name in ("gpt-2.6b", "gpt-39b", "moe-70b", "wide-resnet-13b")},
    "gpt-39b, searched": (searched, "gpt-39b"),
    **{f"gpt, {n} layers": (deep, n) for n in (18, 36, 72)},
}


def plan_of(model, level="O2"):
    """The plan of an example, on a cluster, in microbatches, for so much memory."""
    example, cluster, microbatches, memory_bytes = model
    return plan_for(
        example.step,
        example.arguments,
        cluster,
        batch_argnums=example.batch_argnums,
        microbatches=microbatches,
        memory_bytes=memory_bytes,
        level=level,
    ).plan


@pytest.mark.parametrize(
    "name",
    # where nothing is measured, all are the same
    ["gpt-2.6b", *(pytest.param(n, marks=pytest.mark.nightly) for n in MODELS if n != "gpt-2.6b")],
)
def test_plan(benchmark, forget, name):
    make, argument = MODELS[name]
    model = small() if benchmark.disabled else make(argument)
    before_s = time.process_time()
    found = benchmark.pedantic(plan_of, (model,), setup=forget, rounds=3)
    if make is searched and not benchmark.disabled:
        processor_s = (time.process_time() - before_s) / 3
        assert processor_s < MOST_SEARCHED_S
        benchmark.extra_info["processor"] = f"{processor_s:.0f} s"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert peak < MOST_BYTES
    assert found.lower_bound_s <= found.step_s
    benchmark.extra_info["peak memory"] = f"{peak / 2**30:.2f} GiB"
    benchmark.extra_info["predicted step"] = f"{found.step_s:.1f} s"
    benchmark.extra_info["over its bound"] = f"{found.step_s / found.lower_bound_s:.2f}"
    if name != "gpt-2.6b":
        benchmark.extra_info["baseline"] = "test_plan[gpt-2.6b]"


def test_level_o3(benchmark, forget):
    model = small() if benchmark.disabled else deep(72)
    quick = plan_of(model)
    forget()
    thorough = benchmark.pedantic(plan_of, (model, "O3"), rounds=1)
    # O2 ties equal layers. In the small model of a test, latency is all that counts, and the best
    # way through its two layers is not the same one twice: ties cost 20 % there.
    assert quick.step_s <= (1.25 if benchmark.disabled else 1.05) * thorough.step_s
    benchmark.extra_info["predicted step"] = f"{thorough.step_s:.1f} s"
    benchmark.extra_info["O2 predicts"] = f"{quick.step_s / thorough.step_s:.3f} times"
    benchmark.extra_info["baseline"] = "test_plan[gpt, 72 layers]"
