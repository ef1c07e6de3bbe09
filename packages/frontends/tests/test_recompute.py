"""Backward computes again what it does not hold: the same step, in less memory."""

import random
from dataclasses import replace
from functools import cache
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
from frontends.jax.testing import EXAMPLES, Example
from frontends.layers.layers import LayeredStep, layer
from frontends.layers.recompute import recomputed, share_again
from frontends.layers.replicas import copied_as
from frontends.layers.saved_layouts import is_saved
from frontends.models.gpt import GPTConfig, init, make_optimizer, make_train_step
from frontends.plan.plan_fields import REMATS, Remat, Remats
from frontends.program.liveness import peaks_of
from frontends.report.diff import diff
from frontends.search.plan_step import Planned
from frontends.step.step import BACKWARD, FORWARD, TrainingStep
from frontends.testing import random_plan
from shardspec import Mesh

HOST = Cluster.preset("two-hosts").resized(n_hosts=1, devices_per_host=2)
MESHES = {
    1: (Mesh((2, 2), ("x", "y")),),
    2: (Mesh((2, 2), ("x", "y")), Mesh((2,), ("x",), (4, 5))),
    3: (
        Mesh((2,), ("x",), (0, 1)),
        Mesh((1,), ("x",), (6,)),
        Mesh((2, 2), ("x", "y"), (2, 3, 4, 5)),
    ),
}


@cache
def gpt(n_blocks: int) -> Example:
    """Blocks whose activations take several times as much as their state."""
    config = GPTConfig(n_blocks, 64, 2, sequence=64, vocabulary=64)
    optimizer = make_optimizer(1e-3, 10)
    params = init(jax.random.key(0), config)
    tokens = np.asarray(jax.random.randint(jax.random.key(1), (8, 64), 0, 64))
    step = make_train_step(config, optimizer)
    return Example(step, params, optimizer.init(params), (tokens, np.roll(tokens, 1, 1)))


def planned(remat: Remat | None, n_blocks: int = 3, **options: Any) -> Planned[Any]:
    example = gpt(n_blocks)
    options = {"cluster": HOST, "batch_argnums": (2,), "microbatches": 1, **options}
    return mw.plan_for(example.function, example.arguments, remat=remat, **options)


def remats_of_variants(plan: Plan, example: Example) -> list[Remats]:
    """Train by a saved plan with batches of two sizes; what each variant computes again.

    Losses are compared with those of one device.
    """
    saved = Plan.from_json(plan.to_json())
    step = mw.parallelize(example.function, cluster=HOST, plan=saved, batch_argnums=(2,))
    short = jax.tree.map(lambda tokens: tokens[:4], example.batch)
    ours = theirs = (example.params, example.opt_state)
    single = jax.jit(example.function)
    for batch in (example.batch, short, example.batch):
        *ours, loss = step(*ours, batch)
        *theirs, expected = single(*theirs, batch)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
    return [variant.plan.remats for variant in step.variants]


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


@cache
def with_layers_that_differ() -> Planned[Any]:
    """A plan for a memory between what it takes to compute all again, and products of examples."""
    more, less = (planned(remat, 6).plan.memory_bytes for remat in ("dots", "all"))
    return planned(None, 6, memory_bytes=(more + less) // 2)


def assert_close(results: Any, expected: Any) -> None:
    """Equal up to rounding: Adam divides gradients by their size, and some are nearly zero."""
    for ours, theirs in zip(results, expected, strict=True):
        difference = np.linalg.norm(np.asarray(ours, float) - np.asarray(theirs, float))
        assert difference <= 1e-5 * max(1e-3, float(np.linalg.norm(np.asarray(theirs, float))))


def test_layers_that_differ_are_faster_than_one_choice_for_all_layers_and_fits() -> None:
    plan = with_layers_that_differ().plan
    assert len(plan.remat_of_layers) == plan.stages[-1].last_layer + 1
    assert len({*plan.remat_of_layers}) > 1
    assert plan.memory_bytes <= plan.memory_limit_bytes
    uniform = [other for other in plan.alternatives if other.name.startswith("remat=")]
    assert {other.name for other in uniform} == {f"remat={remat}" for remat in REMATS}
    assert all(other.step_s is None or other.step_s > plan.step_s for other in uniform)


def test_layers_that_differ_compute_the_single_device_step_in_the_memory_that_was_planned() -> None:
    made, example = with_layers_that_differ(), gpt(6)
    run = Runtime(made.trace, made.layered, made.plan, HOST, donate=True)
    (measured,) = measured_peaks(run).stages
    assert 0.85 <= measured.n_bytes / made.plan.memory_bytes <= 1.15
    arguments = jax.tree.map(lambda leaf: leaf.copy(), example.arguments)
    results = run(jax.tree.leaves(arguments))
    assert_close(results, jax.tree.leaves(jax.jit(example.function)(*example.arguments)))


def test_it_is_said_what_layers_compute_again() -> None:
    plan = with_layers_that_differ().plan
    text = " ".join(str(plan).split())
    share = f"{share_again(plan):.1%} of the compute"
    assert "Backward computes again all results of layers in layers " in text
    assert share in text
    assert Plan.from_json(plan.to_json()) == plan
    other = planned("all", 6).plan
    assert any(
        change.kind == "plan" and "all in layers " in str(change)
        for change in diff(plan, other).changes
    )


def test_a_saved_plan_of_layers_that_differ_runs_and_other_batches_do_as_much_again() -> None:
    plan = with_layers_that_differ().plan
    assert remats_of_variants(plan, gpt(6)) == [plan.remat_of_layers] * 2


def test_a_damaged_plan_of_layers_that_differ_is_refused() -> None:
    text, by_layer = (
        with_layers_that_differ().plan.to_json(),
        with_layers_that_differ().plan.remat_of_layers,
    )
    written = ",".join(f'"{remat}"' for remat in by_layer)
    assert text.count(written) == 1
    for wrong in ('"some"', written + ',"all"'):
        with pytest.raises(PlanError, match="remat_of_layers"):
            Plan.from_json(text.replace(written, wrong))


def test_stages_are_sliced_anew_and_run() -> None:
    """The first stage of a pipeline holds most, so it computes most again."""
    example, in_two = gpt(6), {"stages": 2, "schedule": "1f1b", "microbatches": 8}
    less = planned("all", 6, **in_two).plan
    room = (planned("dots", 6, **in_two).plan.memory_bytes + less.memory_bytes) // 2
    made = planned(None, 6, memory_bytes=room, **in_two)
    assert len({*made.plan.remat_of_layers}) > 1
    assert made.plan.step_s < less.step_s
    run = Runtime(made.trace, made.layered, made.plan, HOST)
    results = run(jax.tree.leaves(example.arguments))
    assert_close(results, jax.tree.leaves(jax.jit(example.function)(*example.arguments)))
