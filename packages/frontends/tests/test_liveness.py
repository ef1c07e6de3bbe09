"""The memory of live values: never more than was planned, and no more than XLA allocates."""

import random
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from costmodel import Cluster
from frontends.answer.plan import Plan
from frontends.errors import NoPlanError, PlanError, VerificationError
from frontends.jax.run.runtime import Runtime
from frontends.jax.run.verify import check_memory, measured_peaks
from frontends.jax.testing import EXAMPLES, mlp
from frontends.jax.trace.trace import Trace, trace
from frontends.layers.layers import LayeredStep, layer
from frontends.layers.replicas import copied_as
from frontends.plan.schedule import each_copy, names_that_run, schedule_of, split_stages
from frontends.program.instructions import Free, Keep, Key, makes
from frontends.program.liveness import Peaks, peaks_of, step_of
from frontends.program.program import build_program
from frontends.search.plan_options import STRATEGIES, PlanOptions
from frontends.search.planner import Planner
from frontends.step.stage_memory import fullest_moment
from frontends.testing import random_plan
from hypothesis import example, given, settings
from hypothesis import strategies as st
from shardspec import Layout, Mesh

TWO_HOSTS = Cluster.preset("two-hosts").resized(n_hosts=2, devices_per_host=2)
MESHES = (
    Mesh((2, 2), ("x", "y"), (0, 1, 2, 3)),
    Mesh((2,), ("x",), (4, 5)),
    Mesh((1,), ("x",), (6,)),
)


@cache
def layered(name: str, microbatches: int) -> LayeredStep:
    return layer(EXAMPLES[name]().trace(microbatches).step, 4)


@given(
    st.sampled_from(sorted(EXAMPLES)),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(STRATEGIES[1:]),
    st.sampled_from(names_that_run()),
)
@settings(max_examples=settings().max_examples // 4)
@example("adamw", 2, "data_parallel", "gpipe")
@example("skip", 2, "equal_layers", "interleaved-1f1b")  # a gradient waits on its own rank
def test_no_more_lives_at_one_time_than_was_planned(
    name: str, microbatches: int, strategy: str, schedule: str
) -> None:
    step = layered(name, microbatches)
    try:
        plan = Planner(step, TWO_HOSTS, PlanOptions(strategy=strategy, schedule=schedule)).best()
    except NoPlanError:
        return  # as Megatron's of a batch that has too few examples
    peaks = peaks_of(build_program(copied_as(step, plan).layered.step, plan))
    # of a split backward both parts are planned to need what one of them does
    least = 0.5 if split_stages(each_copy(schedule_of(plan))) else 0.7
    for stage, peak in zip(plan.stages, peaks.stages, strict=True):
        assert least * stage.memory_bytes < peak.n_bytes <= stage.memory_bytes
    assert "ok: live values take at most the planned memory" in str(plan.verify())


def test_a_microbatchs_loss_is_held_beside_the_sum_of_all() -> None:
    plan = Planner(
        layer(mlp().trace(4).step, 16),
        Cluster.preset("p3.16xlarge"),
        PlanOptions(strategy="search"),
    ).best()
    last = plan.stages[-1]
    assert len(plan.stages) > 4
    assert last.memory_bytes < 1000  # little more than scalars
    plan.verify()


@pytest.mark.parametrize("schedule", ["1f1b", "dualpipe", "chimera"])
def test_what_waits_between_levels_of_apply_is_planned(schedule: str) -> None:
    """A norm for each of the gradients, and one of what they were scaled to."""
    params, _, batch = mlp().arguments

    def loss(params: Any, batch: Any) -> Any:
        x = batch["x"]
        for one in params:
            x = jnp.tanh(x @ one["w"] + one["b"])
        return jnp.mean((x - batch["y"]) ** 2)

    def step(params: Any, batch: Any) -> Any:
        gradients = jax.grad(loss)(params, batch)
        scaled = jax.tree.map(lambda g: g / (1 + optax.tree.norm(gradients)), gradients)
        new = jax.tree.map(lambda p, g: p - 0.1 * g, params, scaled)
        return new, optax.tree.norm(scaled)

    traced = trace(step, (params, batch), batch_argnums=(-1,), microbatches=4)
    plan = Planner(
        layer(traced.step, 4), TWO_HOSTS, PlanOptions(strategy="equal_layers", schedule=schedule)
    ).best()
    plan.verify()


@given(
    st.sampled_from(sorted(EXAMPLES)),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(names_that_run()),
    st.lists(st.sampled_from(MESHES), min_size=1, max_size=4),
    st.integers(0, 2**32),
)
@settings(max_examples=settings().max_examples // 5)
def test_a_device_holds_at_least_what_lies_between_instructions(
    name: str, microbatches: int, schedule: str, meshes: list[Mesh], seed: int
) -> None:
    plan = random_plan(layered(name, microbatches), meshes, random.Random(seed), schedule)
    try:
        copied = copied_as(layered(name, microbatches), plan).layered
    except PlanError:
        return  # not defined for these sizes
    step = copied.step
    peaks = peaks_of(build_program(step, plan), program_bytes=lambda chunk: 0)
    between = most_between(copied, plan)
    assert [peak.n_bytes for peak in peaks.stages] == between
    inside = peaks_of(build_program(step, plan))
    assert all(a.n_bytes >= b for a, b in zip(inside.stages, between, strict=True))
    for devices, peak in inside.devices.items():
        mine = [
            p.n_bytes
            for p, s in zip(inside.stages, plan.stages, strict=True)
            if frozenset(s.mesh.device_ids) == devices
        ]
        assert max(mine) <= peak.n_bytes <= sum(mine)


def most_between(step: LayeredStep, plan: Plan) -> list[int]:
    """By stage, from the values that there are after each instruction, counted anew each time."""
    graph = step.step.graph
    program = build_program(step.step, plan)
    chunks = program.chunks
    copies = {(t.destination, t.value) for t in plan.transfers if t.phase == "state"}
    live: set[Key] = {
        (index, stored, None)
        for index, stage in enumerate(plan.stages)
        for stored in stage.inputs
        if stored.value in graph.inputs
        and graph.value(stored.value).role != "batch"
        and (index, stored.value) not in copies
    }

    @cache
    def n_bytes(key: Key) -> int:
        value, mesh = graph.value(key[1].value), plan.stages[key[0]].mesh
        return Layout(value.shape, mesh, key[1].spec).local_bytes(value.itemsize)

    most = [0] * len(plan.stages)
    state = {o.value: o.alias for o in graph.outputs if o.alias is not None}
    over: set[str] = set()
    for item in program.instructions:
        if isinstance(item, Free | Keep):
            live -= {(item.stage, slot, item.microbatch) for slot in item.slots}
        made = set(makes(item, plan, chunks))
        over.update(state[slot.value] for _, slot, _ in made if slot.value in state)
        live |= made
        counted = (k for k in live if k[0] == item.stage and k[1].value not in over)
        for index in range(len(plan.stages)):
            if index == item.stage:
                most[index] = max(most[index], sum(map(n_bytes, counted)))
            else:
                here = sum(n_bytes(k) for k in live if k[0] == index)
                most[index] = max(most[index], here)
    return most


def test_a_plan_knows_its_step_well_enough(priced_plan: Plan) -> None:
    step = step_of(priced_plan)
    original = layer(EXAMPLES["mlp"]().trace().step, 4).step
    assert {op.name for op in step.graph.operators} == {op.name for op in original.graph.operators}
    assert set(step.summed) == set(original.summed)
    assert set(step.graph.outputs) == set(original.graph.outputs)
    ours, theirs = (build_program(each, priced_plan) for each in (step, original))
    assert peaks_of(ours) == peaks_of(theirs)
    bare = replace(priced_plan, stages=tuple(replace(s, sharding=None) for s in priced_plan.stages))
    with pytest.raises(PlanError, match="only a plan that keeps its stages' shardings"):
        step_of(bare)


@pytest.fixture(scope="module")
def wide() -> tuple[Trace, LayeredStep, Plan]:
    """Large enough that what XLA adds to every program does not matter."""
    traced = mlp(optax.adamw(1e-2), width=256).trace()
    step = layer(traced.step, 4)
    return traced, step, Planner(step, TWO_HOSTS, PlanOptions(strategy="equal_layers")).best()


def test_state_that_is_not_given_away_is_held_twice(
    wide: tuple[Trace, LayeredStep, Plan],
) -> None:
    _, step, plan = wide
    program = build_program(step.step, plan)
    given, kept = (peaks_of(program, donate=donate) for donate in (True, False))
    for a, b, stage in zip(given.stages, kept.stages, plan.stages, strict=True):
        assert stage.sharding is not None
        held = fullest_moment(stage.sharding)
        state = held["parameter"] + held["optimizer_state"]
        assert a.n_bytes < b.n_bytes <= a.n_bytes + state


def test_what_xla_lays_out_is_what_was_planned(wide: tuple[Trace, LayeredStep, Plan]) -> None:
    run = Runtime(*wide, TWO_HOSTS, donate=True)
    assert 0.85 < check_memory(run) <= 1.15
    measured: Peaks = measured_peaks(run)
    found = peaks_of(build_program(wide[1].step, wide[2]))
    for a, b in zip(measured.stages, found.stages, strict=True):
        assert 0.85 < a.n_bytes / b.n_bytes < 1.15


def test_what_takes_more_than_planned_is_named(wide: tuple[Trace, LayeredStep, Plan]) -> None:
    traced, step, plan = wide
    less = tuple(replace(stage, memory_bytes=stage.memory_bytes // 2) for stage in plan.stages)
    run = Runtime(traced, step, replace(plan, stages=less), TWO_HOSTS, donate=True)
    with pytest.raises(VerificationError, match=r"at most 15% more memory .* stage 0 needs .* RUN"):
        check_memory(run)
    with pytest.raises(VerificationError, match=r"stage 0: live values take .* are planned"):
        replace(plan, stages=less).verify()
