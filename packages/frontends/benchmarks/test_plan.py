"""How long does it take to plan the demo's GPT, and in which part of planning?

The default GPT (4 blocks, d = 128, sequence 128) with a batch of 16 is planned for the preset
`two-hosts`, in 8 microbatches and in one, as `plan_for` does. `trace` is from the function to an
operator graph, `layers` from there to layers. Baseline of the search: pricing pure data parallelism
alone; the search tries that, the other obvious plans, and all stages and shardings. Each round
starts with empty caches, as a new process does.

Not shown: larger models and clusters, and whether the predicted steps come true on such a cluster.
"""

import pytest
from frontends.jax.trace.trace import trace
from frontends.layers.layers import layer
from frontends.search.plan_options import PlanOptions
from frontends.search.planner import Planner


def make_traces(job):
    return [
        trace(job.function, job.arguments, batch_argnums=(2,), microbatches=n)
        for n in (job.microbatches, 1)
    ]


def make_layers(job, traces):
    return [layer(found.step, job.n_layers) for found in traces]


def search(job, layers, strategy):
    return Planner(
        layers[0], job.cluster, PlanOptions(strategy=strategy), undivided=layers[1]
    ).best()


def test_trace(benchmark, job, forget):
    traces = benchmark.pedantic(make_traces, (job,), setup=forget, rounds=3)
    benchmark.extra_info["operators"] = len(traces[0].step.graph.operators)


def test_layers(benchmark, job):
    layers = benchmark.pedantic(make_layers, (job, make_traces(job)), rounds=3)
    benchmark.extra_info["layers"] = layers[0].n_layers


@pytest.mark.parametrize("strategy", ["data_parallel", "auto"])
def test_search(benchmark, job, strategy, forget):
    layers = make_layers(job, make_traces(job))
    obvious = search(job, layers, "data_parallel")

    def setup():
        forget()
        return (job, layers, strategy), {}

    plan = benchmark.pedantic(search, setup=setup, rounds=3)

    assert plan.step_s <= obvious.step_s
    benchmark.extra_info["predicted step"] = f"{plan.step_s * 1e3:.1f} ms"
    if strategy == "auto":
        benchmark.extra_info["baseline"] = "test_search[data_parallel]"
