"""The main job at a small size: every kind of plan trains like one device, as planned.

Parameters are compared leaf by leaf: the largest difference, relative to the largest magnitude of
the leaf, may be 1e-5. AdamW divides a gradient by its magnitude, so where a gradient is nearly
zero, its rounding noise becomes the update. Epsilon is well above that noise here, so that the
comparison tests the plan and not the rounding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import frontends.jax as mw
import numpy as np
import pytest
from costmodel import Cluster, Level, Link
from frontends import Plan
from frontends.jax.run.verify import check_collectives
from frontends.models import gpt

mw.init(8)

import jax  # noqa: E402
import optax  # noqa: E402

TWO_HOSTS = Cluster.preset("two-hosts")


def slower(factor: float, **sizes: int) -> Cluster:
    """Two hosts whose devices are so slow that a tiny model is worth distributing."""
    device = TWO_HOSTS.device
    slow = replace(
        device,
        flops_per_s=tuple((name, rate / factor) for name, rate in device.flops_per_s),
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s / factor,
    )
    hosts = tuple(replace(host, device=slow) for host in TWO_HOSTS.hosts)
    return replace(TWO_HOSTS, hosts=hosts).resized(**sizes)


CONFIG = gpt.GPTConfig(n_layers=2, d_model=32, n_heads=4, sequence=16)
BATCH = 16
STEPS = 3


def batches() -> list[gpt.Batch]:
    rng = np.random.default_rng(0)
    text = rng.integers(0, gpt.VOCABULARY, (STEPS, BATCH, CONFIG.sequence + 1)).astype(np.int32)
    return [(part[:, :-1], part[:, 1:]) for part in text]


def is_data_parallel(plan: Plan) -> bool:
    (stage,) = plan.stages
    batch = {s.spec.dims[0] for s in stage.inputs if s.value.startswith("batch")}
    parameters = {s.spec.axes for s in stage.inputs if s.value.startswith("params")}
    axes = tuple(range(len(stage.mesh.shape)))
    return batch == {axes} and parameters == {()}


def is_tensor_parallel(plan: Plan) -> bool:
    (stage,) = plan.stages
    parameters = {s.spec.axes for s in stage.inputs if s.value.startswith("params")}
    forward = {c.axes for c in stage.collectives if c.phase == 0}
    return (1,) in parameters and (1,) in forward


def is_pipeline(plan: Plan) -> bool:
    sent = {(t.phase, t.source, t.destination) for t in plan.transfers}
    alone = all(stage.mesh.size == 1 for stage in plan.stages)
    return alone and {("forward", 0, 1), ("backward", 1, 0)} <= sent


def is_pipeline_of_meshes(plan: Plan) -> bool:
    return len(plan.stages) >= 2 and all(
        stage.mesh.size > 1 and stage.collectives for stage in plan.stages
    )


KINDS: dict[str, tuple[Cluster, dict[str, Any], Callable[[Plan], bool]]] = {
    "data parallel": (
        TWO_HOSTS.resized(n_hosts=1),
        {"strategy": "data_parallel", "microbatches": 2},
        is_data_parallel,
    ),
    "tensor parallel": (
        slower(10, n_hosts=1),
        {"strategy": "megatron", "microbatches": 2, "memory_bytes": 1_500_000},
        is_tensor_parallel,
    ),
    "pipeline": (
        TWO_HOSTS.resized(devices_per_host=1),
        {"strategy": "equal_layers", "microbatches": 4},
        is_pipeline,
    ),
    "found plan": (
        replace(slower(100), levels=(Level("network", 2, Link(10e-6, 5e6)),)),
        {"microbatches": 8},
        is_pipeline_of_meshes,
    ),
}

OPTIMIZERS = {
    "momentum": optax.sgd(0.1, momentum=0.9),
    "adamw": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, eps=1e-3)),
}


@functools.cache
def on_one_device(optimizer: str) -> tuple[gpt.TrainStep, tuple[Any, Any], list[float], Any]:
    """The step, its first state, and the losses and final parameters that one device computes."""
    step = gpt.make_train_step(CONFIG, OPTIMIZERS[optimizer])
    params = gpt.init(jax.random.key(0), CONFIG)
    state = trained = (params, OPTIMIZERS[optimizer].init(params))
    single, losses = jax.jit(step), []
    for batch in batches():
        *trained, loss = single(*trained, batch)
        losses.append(float(loss))
    return step, state, losses, trained[0]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", KINDS)
def test_three_steps_equal_those_of_one_device(kind: str, optimizer: str) -> None:
    cluster, options, is_of_kind = KINDS[kind]
    step, ours, losses, expected = on_one_device(optimizer)
    parallel = mw.parallelize(step, cluster=cluster, **options)
    for batch, loss in zip(batches(), losses, strict=True):
        *ours, our_loss = parallel(*ours, batch)
        assert float(our_loss) == pytest.approx(loss, rel=1e-5)
    assert is_of_kind(parallel.plan)
    for ours_leaf, theirs_leaf in zip(
        jax.tree.leaves(ours[0]), jax.tree.leaves(expected), strict=True
    ):
        a, b = np.asarray(ours_leaf), np.asarray(theirs_leaf)
        assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()
    assert check_collectives(parallel.compile(*ours, batch)) == sum(
        len(stage.collectives) for stage in parallel.plan.stages
    )


def test_the_default_job_is_a_pipeline_of_sharded_stages() -> None:
    """So it really runs resharding between meshes, a schedule and gradient accumulation."""
    config = gpt.GPTConfig()
    optimizer = gpt.make_optimizer(1e-3, 100)
    params = jax.eval_shape(lambda key: gpt.init(key, config), jax.random.key(0))
    batch = (jax.ShapeDtypeStruct((16, config.sequence), np.int32),) * 2
    planned = mw.plan_for(
        gpt.make_train_step(config, optimizer),
        (params, jax.eval_shape(optimizer.init, params), batch),
        TWO_HOSTS,
    )
    assert is_pipeline_of_meshes(planned.plan)
    assert planned.plan.microbatches > 1
    assert planned.plan.step_s == min(
        [planned.plan.step_s, *(a.step_s for a in planned.plan.alternatives if a.step_s)]
    )
