"""Backward computes again what it does not hold: the same step, in less memory."""

import random
from dataclasses import replace
from typing import Any

import frontends.jax as mw
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from autoshard import Graph
from costmodel import Cluster
from frontends.answer.plan import Plan
from frontends.errors import NoPlanError, PlanError
from frontends.jax.run.runtime import Runtime
from frontends.jax.run.verify import measured_peaks
from frontends.jax.testing import EXAMPLES
from frontends.layers.layers import LayeredStep, layer
from frontends.layers.recompute import recomputed, share_again
from frontends.layers.replicas import copied_as
from frontends.layers.saved_layouts import is_saved
from frontends.models.gpt import GPTConfig, make_optimizer, make_train_step
from frontends.plan.plan_fields import REMATS, Remat, Remats
from frontends.program.liveness import peaks_of
from frontends.step.step import BACKWARD, FORWARD, TrainingStep
from frontends.testing import random_plan
from recomputing import HOST, gpt, planned, remats_of_variants
from shardspec import Mesh

MESHES = {
    1: (Mesh((2, 2), ("x", "y")),),
    2: (Mesh((2, 2), ("x", "y")), Mesh((2,), ("x",), (4, 5))),
    3: (
        Mesh((2,), ("x",), (0, 1)),
        Mesh((1,), ("x",), (6,)),
        Mesh((2, 2), ("x", "y"), (2, 3, 4, 5)),
    ),
}


def in_layers(step: TrainingStep, remat: Remats, n_layers: int | None = None) -> LayeredStep:
    return layer(recomputed(step, layer(step, n_layers).layer_of, remat), n_layers)


def saved_bytes(graph: Graph) -> int:
    return sum(graph.value(n).n_bytes for n in graph.saved if n in graph.producers)


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_choice_saves_less_and_repeats_more_in_the_layers_of_forward(name: str) -> None:
    step = EXAMPLES[name]().trace(2).step
    plain = layer(step)
    before_bytes, before = saved_bytes(step.graph) + 1, -1
    for remat in REMATS:
        layered = in_layers(step, remat)
        original, layer_of = layered.step.original, layered.layer_of
        assert saved_bytes(layered.step.graph) <= before_bytes
        assert len(original) >= before
        before_bytes, before = saved_bytes(layered.step.graph), len(original)
        assert all(layer_of[copy] == layer_of[first] for copy, first in original.items())
        assert {
            n: k for n, k in plain.layer_of.items() if not is_saved(n)
        }.items() <= layer_of.items()
        assert plain.n_layers - 1 not in {layer_of[copy] for copy in original}, "it gains nothing"
    assert before_bytes < saved_bytes(step.graph)


def test_what_the_choices_repeat_of_attention() -> None:
    step = gpt(3).trace(1).step
    kinds = {op.name: op for op in step.graph.operators}
    repeated = {
        remat: [kinds[name] for name in in_layers(step, remat).step.original.values()]
        for remat in REMATS
    }
    products = {
        remat: {len(op.rule.operands[1]) for op in ops if op.kind == "dot_general"}
        for remat, ops in repeated.items()
    }
    assert not repeated["none"]
    assert products["cheap"] == set()
    assert products["dots"] == {4}, "scores and mixtures, by example and head"
    assert products["all"] == {2, 4}, "of weights, too"
    kinds_again = {op.kind for op in repeated["cheap"]}
    assert "tanh" in kinds_again, "of GELU, from the result of a product"
    assert "exp" not in kinds_again, "a softmax is as large as its scores, which need not be held"


CASES = [
    ("gpt", 1, "gpipe", "cheap"),
    ("gpt", 3, "eager-1f1b", "all"),
    ("tied", 2, "1f1b", ("all", "none", "dots", "cheap")),
    ("clipped", 2, "zb-h1", "all"),
    ("mlp", 2, "chimera", "cheap"),
]


@pytest.mark.parametrize(("name", "n_stages", "schedule", "remat"), CASES)
def test_random_plans_compute_the_single_device_step(
    name: str, n_stages: int, schedule: str, remat: Remats
) -> None:
    example = EXAMPLES[name]()
    traced = example.trace(4)
    layered = in_layers(traced.step, remat, 4)
    plan = random_plan(layered, MESHES[n_stages], random.Random(0), schedule)
    copied = copied_as(layered, plan)
    traced = traced.with_copies(copied.traced)
    run = Runtime(traced, copied.layered, plan, Cluster.preset("two-hosts"))
    results = run(jax.tree.leaves(example.arguments))
    expected = jax.tree.leaves(jax.jit(example.function)(*example.arguments))
    for ours, theirs in zip(results, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.parametrize(("remat", "microbatches", "share"), [("dots", 1, 0.6), ("all", 2, 0.75)])
def test_memory_is_what_was_planned(remat: Remat, microbatches: int, share: float) -> None:
    peaks = []
    for choice in ("none", remat):
        found = planned(choice, strategy="data_parallel", microbatches=microbatches)
        run = Runtime(found.trace, found.layered, found.plan, HOST, donate=True)
        (measured,), (live,) = measured_peaks(run).stages, peaks_of(run.program).stages
        assert live.n_bytes <= found.plan.memory_bytes
        assert 0.75 <= measured.n_bytes / found.plan.memory_bytes <= 1.15
        peaks.append(measured.n_bytes)
    assert peaks[1] <= share * peaks[0]


def test_masks_of_dropout_are_the_same_again() -> None:
    def step(weights: Any, batch: Any, key: jax.Array) -> Any:
        def loss(weights: Any) -> Any:
            x = batch
            for number, weight in enumerate(weights):
                kept = jax.random.bernoulli(jax.random.fold_in(key, number), 0.8, x.shape)
                x = x + jnp.where(kept, jnp.tanh(x @ weight), 0)
            return jnp.mean(x**2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - g, weights, gradients), value

    weights = list(jax.random.normal(jax.random.key(0), (4, 16, 16)) / 4)
    arguments = (weights, jax.random.normal(jax.random.key(1), (8, 16)), jax.random.key(2))
    parallel = mw.parallelize(
        step, cluster=HOST, strategy="equal_layers", microbatches=2, batch_argnums=(1,), remat="all"
    )
    ours, theirs = parallel(*arguments), jax.jit(step)(*arguments)
    assert "lt" in {
        op.kind
        for op in parallel.variants[0].planned.layered.step.graph.operators
        if op.name.startswith("backward@")
    }
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_nothing_is_computed_again_if_everything_fits() -> None:
    plan = planned(None).plan
    assert plan.remat == "none"
    assert share_again(plan) == 0
    assert not any("remat" in other.name for other in plan.alternatives)


def test_a_plan_recomputes_where_memory_is_short_and_says_so() -> None:
    roomy, lean = planned("none").plan, planned("all").plan
    limit = (2 * lean.memory_bytes + roomy.memory_bytes) // 3
    with pytest.raises(NoPlanError):
        planned("none", memory_bytes=lean.memory_bytes, strategy="data_parallel")
    plan = planned(None, memory_bytes=limit).plan
    assert plan.remat != "none"
    assert plan.memory_bytes <= limit
    assert 0 < share_again(plan) < 0.3
    assert f"again, remat={plan.remat}: {share_again(plan):.1%} of the compute" in str(plan)
    others = {other.name: other for other in plan.alternatives}
    assert others.keys() >= {f"remat={remat}" for remat in ("none", "cheap") if remat != plan.remat}
    times = [other.step_s for name, other in others.items() if name.startswith("remat=")]
    assert all(s is None or s >= plan.step_s for s in times), "the fastest of all"
    assert Plan.from_json(plan.to_json()) == plan


def test_a_saved_plan_runs_and_other_batches_recompute_too() -> None:
    plan = planned("dots", strategy="data_parallel").plan
    assert remats_of_variants(plan, gpt(3)) == ["dots", "dots"]


def test_the_names_of_the_choices_are_checked() -> None:
    with pytest.raises(PlanError, match="remat is one of none, cheap, dots, all; got 'some'"):
        planned("some")  # type: ignore[arg-type]
    text = planned("cheap", strategy="data_parallel").plan.to_json()
    with pytest.raises(PlanError, match="remat is"):
        Plan.from_json(text.replace('"remat":"cheap"', '"remat":"some"'))


def test_the_program_of_the_users_checkpoint_is_repeated_once() -> None:
    """A step that recomputes on its own leaves little to be computed again besides."""
    config = GPTConfig(3, 64, 2, sequence=64, vocabulary=64, remat=True)
    example = replace(gpt(3), function=make_train_step(config, make_optimizer(1e-3, 10)))
    step = example.trace(1).step
    plain, again = saved_bytes(step.graph), saved_bytes(in_layers(step, "all").step.graph)
    assert 0.9 * plain <= again <= plain
    forward, backward = (
        sum(op.flops for op in in_layers(step, "all").step.graph.operators if op.phase == phase)
        for phase in (FORWARD, BACKWARD)
    )
    assert backward < 3.1 * forward
