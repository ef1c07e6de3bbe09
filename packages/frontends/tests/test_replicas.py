"""Copies of stages: the same work on other microbatches, with state and updates in one place."""

from collections import Counter
from dataclasses import replace
from functools import cache

import autoshard
import pipesched
import pytest
from autoshard import Sharding
from costmodel import Cluster
from frontends.answer.plan import Plan
from frontends.errors import NoPlanError
from frontends.jax.testing import EXAMPLES
from frontends.layers.layers import LayeredStep, layer
from frontends.layers.replicas import CopiedStep, copied_as, sharding_of_copy, with_copies
from frontends.plan.schedule import (
    copy_at,
    each_copy,
    microbatches_at,
    schedule_of,
)
from frontends.search.plan_options import PlanOptions
from frontends.search.planner import Planner
from frontends.step.step import APPLY, SUM
from hypothesis import given, settings
from hypothesis import strategies as st
from shardspec import Mesh

TWO_HOSTS = Cluster.preset("two-hosts").resized(n_hosts=2, devices_per_host=2)
BOTH_WAYS = ("dualpipe", "chimera")


@cache
def layered(name: str) -> LayeredStep:
    return layer(EXAMPLES[name]().trace(8).step, 4)


@cache
def planned(name: str, schedule: str) -> Plan:
    return Planner(
        layered(name), TWO_HOSTS, PlanOptions(strategy="equal_layers", schedule=schedule)
    ).best()


def originals(copied: CopiedStep, first: int) -> Counter[tuple[str, int]]:
    """Operators of forward and backward in the layers from `first` on, by their original names."""
    layers = range(first, first + copied.n_layers)
    step = copied.layered
    return Counter(
        (copied.original.get(op.name, op.name), step.layer_of[op.name] - first)
        for op in step.step.graph.operators
        if op.phase != APPLY and step.layer_of[op.name] in layers
    )


@given(st.sampled_from(sorted(EXAMPLES)), st.integers(2, 4))
def test_every_copy_has_all_of_forward_and_backward(name: str, n_routes: int) -> None:
    step = layered(name)
    copied = with_copies(step, n_routes)
    assert copied.layered.n_layers == n_routes * step.n_layers
    whole = originals(with_copies(step, 1), 0)
    for route in range(n_routes):
        assert originals(copied, route * step.n_layers) == whole
    apply = [op for op in step.step.graph.operators if op.phase == APPLY]
    ops = copied.layered.step.graph.operators
    assert list(ops[-len(apply) :]) == apply, "apply is as it was"
    assert [op.phase for op in ops] == sorted(op.phase for op in ops)
    sums = {op.outputs[0]: op.inputs for op in ops if op.kind == SUM}
    assert set(sums) == set(step.step.summed)
    assert all(len(parts) == n_routes for parts in sums.values())
    assert set(copied.layered.step.summed) == {
        f"route{route}.{name}" for name in step.step.summed for route in range(n_routes)
    }
    assert copied.layered.step.fingerprint == step.step.fingerprint


def test_one_route_leaves_the_step_as_it_is() -> None:
    assert with_copies(layered("mlp"), 1).layered is layered("mlp")


@pytest.mark.parametrize("schedule", BOTH_WAYS)
@pytest.mark.parametrize("name", ["adamw", "clipped", "tied"])
def test_state_is_kept_and_updated_once(name: str, schedule: str) -> None:
    plan = planned(name, schedule)
    n_stages = len(plan.stages) // 2
    kept = Counter(
        (output.alias, index < n_stages)
        for index, stage in enumerate(plan.stages)
        if stage.sharding is not None
        for output in stage.sharding.graph.outputs
        if output.alias is not None
    )
    assert kept == Counter((alias, True) for alias in layered(name).updated)
    sent = Counter((t.phase, t.source < n_stages, t.destination < n_stages) for t in plan.transfers)
    assert sent["state", True, False] > 0
    assert sent["apply", False, True] > 0
    assert not sent["state", False, True]
    assert not sent["apply", True, False]
    state = [t for t in plan.transfers if (t.phase, t.destination >= n_stages) == ("state", True)]
    assert all(t.value.startswith("params") for t in state), "and no optimizer state is sent"


@pytest.mark.parametrize("schedule", BOTH_WAYS)
def test_a_copy_does_for_a_microbatch_what_its_stage_does(schedule: str) -> None:
    plan, alone = planned("gpt", schedule), planned("gpt", "1f1b")
    n_stages = len(alone.stages)
    for index, stage in enumerate(plan.stages):
        other = alone.stages[index % n_stages]
        assert stage.forward_s == pytest.approx(other.forward_s)
        assert stage.backward_s == pytest.approx(other.backward_s)
        assert stage.apply_s < other.apply_s or index < n_stages
        of_compute = [
            Counter((c.phase, c.kind, c.n_bytes) for c in s.collectives if c.phase != APPLY)
            for s in (stage, other)
        ]
        assert of_compute[0] == of_compute[1]
        assert {c.repeats for c in stage.collectives if c.phase != APPLY} <= {4}
        assert stage.sharding == Sharding.from_json(stage.sharding.to_json())


@given(
    st.sampled_from(sorted(EXAMPLES)),
    st.sampled_from(BOTH_WAYS),
    st.sampled_from(["search", "equal_layers"]),
    st.sampled_from([(1, 2), (1, 4), (2, 2), (2, 4)]),
)
@settings(max_examples=settings().max_examples // 8)  # each is a plan or several
def test_plans_both_ways_hold_together(
    name: str, schedule: str, strategy: str, shape: tuple[int, int]
) -> None:
    n_hosts, devices_per_host = shape
    cluster = TWO_HOSTS.resized(n_hosts=n_hosts, devices_per_host=devices_per_host)
    try:
        plan = Planner(
            layered(name), cluster, PlanOptions(strategy=strategy, schedule=schedule)
        ).best()
    except NoPlanError:
        return  # as layers that are too few for the ranks
    plan.verify()
    assert Plan.from_json(plan.to_json()) == plan
    copied = copied_as(layered(name), plan).layered
    names = {op.name for op in copied.step.graph.operators}
    assert {p.operator for stage in plan.stages for p in stage.placements} == names


@pytest.mark.parametrize("early", [False, True])
def test_a_total_is_added_in_the_layout_that_apply_reads(early: bool) -> None:
    """Where apply scales a gradient before it is reduced, what copies send counts once in parts."""
    step = layer(EXAMPLES["mlp"]().trace(4).step, 4)
    graph, last = step.stage(0, step.n_layers - 1), step.n_layers - 1
    mesh = Mesh((2,), ("x",))
    whole = autoshard.shard(graph, mesh, TWO_HOSTS, restrict="data_parallel")
    if not early:
        whole = scaled_in_parts(whole)
    copied = with_copies(step, 2)
    first = sharding_of_copy(whole, copied, 0, last, 2)
    other = sharding_of_copy(whole, copied, step.n_layers, 2 * step.n_layers - 1, 2)
    for sharding in (first, other):
        assert Sharding.from_json(sharding.to_json()) == sharding
    sums = [
        strategy
        for op, strategy in zip(first.graph.operators, first.strategies, strict=True)
        if op.kind == SUM
    ]
    assert any(strategy.result_specs[0].is_partial for strategy in sums) is not early
    assert not any(spec.is_partial for s in sums for spec in s.operand_specs[1:])
    assert not any(spec.is_partial for spec in other.output_specs)
    collectives = [
        Counter((c.step.kind, c.step.dst.local_bytes(4)) for c in autoshard.collectives(s.graph, s))
        for s in (whole, first, other)
    ]
    assert collectives[0] == collectives[1] == collectives[2], "each copy reduces its own part"


def scaled_in_parts(sharding: Sharding) -> Sharding:
    """The same with the gradients reduced after they are multiplied with the learning rate."""
    graph, strategies = sharding.graph, list(sharding.strategies)
    conversions = {c.value: c for c in sharding.conversions if c.phase == APPLY}
    moved = {}
    for index, op in enumerate(graph.operators):
        for value in op.inputs:
            if op.phase == APPLY and op.kind == "mul" and value in conversions:
                part = conversions[value].src
                (strategies[index],) = (
                    s
                    for s in autoshard.enumerate_strategies(op.rule, sharding.mesh.shape)
                    if s.result_specs == (part,)
                )
                moved[value] = replace(conversions[value], value=op.outputs[0])
    assert moved
    return replace(
        sharding,
        strategies=tuple(strategies),
        conversions=tuple(
            moved.get(c.value, c) if c.phase == APPLY else c for c in sharding.conversions
        ),
    )


@given(st.sampled_from(BOTH_WAYS), st.integers(1, 4), st.integers(4, 16))
def test_each_copy_runs_the_microbatches_of_its_route(name: str, half: int, n: int) -> None:
    try:
        schedule = pipesched.make(name, 2 * half, n)
    except pipesched.ArgumentError:
        return  # not defined for these sizes
    alone = each_copy(schedule)
    assert alone.n_stages == pipesched.schedule_entry(name).copies_of_stages * schedule.n_stages
    seen = Counter(
        action.stage for actions in alone.ranks for action in actions if action.kind == "F"
    )
    for stage in range(alone.n_stages):
        first = stage % schedule.n_stages
        mine = [m for m in range(n) if copy_at(schedule, first, m) == stage]
        assert len(mine) == microbatches_at(schedule, stage) == seen[stage]


def test_a_plan_for_copies_is_read_by_name_and_by_text() -> None:
    plan = planned("mlp", "chimera")
    schedule = schedule_of(plan)
    assert len(plan.stages) == 2 * schedule.n_stages
    assert schedule_of(Plan.from_json(plan.to_json())) == schedule
