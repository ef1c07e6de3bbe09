"""Layers that differ in what they compute again: which do is chosen exactly, and the step runs."""

from functools import cache
from itertools import product
from typing import Any

import jax
import numpy as np
import pytest
from frontends.answer.plan import Plan
from frontends.errors import PlanError
from frontends.jax.run.runtime import Runtime
from frontends.jax.run.verify import measured_peaks
from frontends.layers.recompute import share_again
from frontends.plan.plan_fields import REMATS
from frontends.report.diff import diff
from frontends.search.plan_step import Planned
from frontends.search.remat_by_layer import Costs, first_layers_most, least_time
from hypothesis import given
from hypothesis import strategies as st
from recomputing import HOST, gpt, planned, remats_of_variants
from stagecut import StageCost

costs = st.builds(
    StageCost,
    time_s=st.integers(1, 9).map(float),
    fixed_bytes=st.just(0),
    activation_bytes=st.integers(0, 9).map(lambda n: n << 20),
)
layers = st.lists(
    st.dictionaries(st.sampled_from(REMATS), costs, min_size=1), min_size=1, max_size=5
)


@given(layers, st.integers(0, 30))
def test_no_choice_that_fits_takes_less_time(of_layers: list[Costs], megabytes: int) -> None:
    free = float(megabytes << 20)
    fitting = [
        sum(cost[remat].time_s for cost, remat in zip(of_layers, choice, strict=True))
        for choice in product(*of_layers)
        if sum(c[r].activation_bytes for c, r in zip(of_layers, choice, strict=True)) <= free
    ]
    # A megabyte is more than bytes are rounded by: it makes room for the rounding.
    chosen = least_time(of_layers, free + (1 << 20))
    if chosen is None:
        assert not fitting
        return
    pairs = [cost[remat] for cost, remat in zip(of_layers, chosen, strict=True)]
    assert sum(cost.activation_bytes for cost in pairs) <= free + (1 << 20)
    assert sum(cost.time_s for cost in pairs) <= min(fitting, default=float("inf"))


@given(layers, st.data())
def test_of_equal_layers_the_first_ones_compute_most_again(
    of_layers: list[Costs], data: st.DataObject
) -> None:
    twice = [*of_layers, *of_layers]
    chosen = [data.draw(st.sampled_from([*cost])) for cost in twice]
    ordered = first_layers_most(chosen, twice)
    assert sorted(ordered) == sorted(chosen)
    for layer in range(len(of_layers)):
        assert ordered[layer] in twice[layer]
        assert REMATS.index(ordered[layer]) >= REMATS.index(ordered[layer + len(of_layers)])


@cache
def found() -> Planned[Any]:
    """A plan for a memory between what it takes to compute all again, and products of examples."""
    more, less = (planned(remat, 6).plan.memory_bytes for remat in ("dots", "all"))
    return planned(None, 6, memory_bytes=(more + less) // 2)


def assert_close(results: Any, expected: Any) -> None:
    """Equal up to rounding: Adam divides gradients by their size, and some are nearly zero."""
    for ours, theirs in zip(results, expected, strict=True):
        difference = np.linalg.norm(np.asarray(ours, float) - np.asarray(theirs, float))
        assert difference <= 1e-5 * max(1e-3, float(np.linalg.norm(np.asarray(theirs, float))))


def test_it_is_faster_than_one_choice_for_all_layers_and_fits() -> None:
    plan = found().plan
    assert len(plan.remat_of_layers) == plan.stages[-1].last_layer + 1
    assert len({*plan.remat_of_layers}) > 1
    assert plan.memory_bytes <= plan.memory_limit_bytes
    uniform = [other for other in plan.alternatives if other.name.startswith("remat=")]
    assert {other.name for other in uniform} == {f"remat={remat}" for remat in REMATS}
    assert all(other.step_s is None or other.step_s > plan.step_s for other in uniform)


def test_it_computes_the_single_device_step_in_the_memory_that_was_planned() -> None:
    made, example = found(), gpt(6)
    run = Runtime(made.trace, made.layered, made.plan, HOST, donate=True)
    (measured,) = measured_peaks(run).stages
    assert 0.85 <= measured.n_bytes / made.plan.memory_bytes <= 1.15
    arguments = jax.tree.map(lambda leaf: leaf.copy(), example.arguments)
    results = run(jax.tree.leaves(arguments))
    assert_close(results, jax.tree.leaves(jax.jit(example.function)(*example.arguments)))


def test_it_says_what_its_layers_compute_again() -> None:
    plan = found().plan
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


def test_a_saved_plan_runs_and_other_batches_compute_as_much_again() -> None:
    plan = found().plan
    assert remats_of_variants(plan, gpt(6)) == [plan.remat_of_layers] * 2


def test_a_damaged_plan_is_refused() -> None:
    text, by_layer = found().plan.to_json(), found().plan.remat_of_layers
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
