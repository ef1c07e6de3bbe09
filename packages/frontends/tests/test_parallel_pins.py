"""Ways of parallelism that the user chooses: the plan has them, or an error says why not."""

from functools import cache
from itertools import combinations_with_replacement, product
from typing import Any

import frontends.jax as mw
import numpy as np
import optax
import pytest
from costmodel import Cluster
from frontends.answer.plan import Plan
from frontends.cli.plan_arguments import PlanArguments
from frontends.errors import NoPlanError, PlanError
from frontends.jax.testing import mlp, small_gpt
from frontends.layers.layers import LayeredStep, layer
from frontends.price.device_pool import DevicePool
from frontends.price.parallel_options import (
    NO_PINS,
    PINNED_WAYS,
    ParallelPins,
    logical_meshes,
    options_of,
)
from frontends.search.plan_options import PlanOptions
from frontends.search.planner import Planner
from hypothesis import given, settings
from hypothesis import strategies as st
from typer import BadParameter

CLUSTER = Cluster.preset("two-hosts")


@cache
def layered(microbatches: int = 2) -> LayeredStep:
    return layer(mlp(optax.adam(1e-3), width=64).trace(microbatches).step, 4)


def planned(cluster: Cluster = CLUSTER, **options: Any) -> Plan:
    return Planner(layered(), cluster, PlanOptions(**options)).best()


def is_possible(options: dict[str, int | None]) -> bool:
    """Whether 8 devices, 4 layers and microbatches of 4 examples have such ways, by all ways."""
    stages, dp, tp, zero = (options[name] for name in ("stages", "dp", "tp", "zero"))
    sizes = []
    for size, ways in product((1, 2, 4, 8), (1, 2, 4, 8)):  # devices, and data parallel ways
        if size % ways or (dp, tp, zero) == (None, None, None):
            continue
        is_chosen = dp in (None, ways) and tp in (None, size // ways)
        is_all_data = (dp, tp) != (None, None) or ways == size
        if is_chosen and is_all_data and 4 % ways == 0:
            sizes.append(size)
    if (dp, tp, zero) == (None, None, None):
        sizes = [1, 2, 4, 8]
    counts = range(1, 5) if stages is None else [stages] if stages <= 4 else []
    return any(
        sum(chosen) == 8 for n in counts for chosen in combinations_with_replacement(sizes, n)
    )


@settings(max_examples=40, deadline=None)
@given(
    st.fixed_dictionaries(
        {name: st.sampled_from([None, 1, 2, 4, 8]) for name in ("stages", "dp", "tp")}
        | {"zero": st.sampled_from([None, 0, 1, 2, 3])}
    )
)
def test_a_plan_has_the_ways_that_were_asked_for(options: dict[str, int | None]) -> None:
    asked = {name: n for name, n in options.items() if n is not None}
    if not is_possible(options):
        with pytest.raises((NoPlanError, PlanError), match="=") as refused:
            planned(**asked)
        assert any(f"{name}={n}" in str(refused.value) for name, n in asked.items())
        return
    plan = planned(**asked)
    assert options["stages"] in (None, len(plan.stages))
    assert sum(stage.mesh.size for stage in plan.stages) == CLUSTER.n_devices
    pins = ParallelPins(*(options[name] for name in ("dp", "tp", "zero")))
    if pins != NO_PINS:
        for stage in plan.stages:
            assert stage.mesh.shape == pins.shape(stage.mesh.size)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_zero_says_what_is_sharded_over_data_parallel_devices(zero: int) -> None:
    plan = planned(stages=2, dp=2, tp=2, zero=zero)
    data, model = 0, 1
    assert all(stage.mesh.shape == (2, 2) for stage in plan.stages)
    assert axes_of(plan, "parameter") == {(model,) if zero < 3 else (data, model)}
    assert axes_of(plan, "optimizer_state") == {(model,) if zero < 1 else (data, model)}
    kept = {stage.memory_bytes for stage in planned(stages=2, dp=2, tp=2, zero=3).stages}
    assert max(kept) <= plan.memory_bytes


def axes_of(plan: Plan, role: str) -> set[tuple[int, ...]]:
    """The mesh axes over which the matrices of a role are sharded."""
    values = layered().step.graph.value
    stored = (each for stage in plan.stages for each in stage.inputs)
    chosen = (each for each in stored if values(each.value).role == role)
    return {tuple(sorted(c.spec.axes)) for c in chosen if len(values(c.value).shape) == 2}


def test_data_parallelism_alone_is_near_the_baseline() -> None:
    four = CLUSTER.resized(n_hosts=1)
    pinned, baseline = planned(four, stages=1, zero=0), planned(four, strategy="data_parallel")
    # the baseline may also shard sums of gradients, and split products along other dims
    assert baseline.step_s <= pinned.step_s <= 1.2 * baseline.step_s
    assert axes_of(pinned, "parameter") == {()}


@pytest.mark.parametrize(
    "stages", [(1, 3), [3, 1], ((1, 1, 4), (3, 1, 4)), [(2, 1, 2), (1, 1, 2), (1, 1, 4)]]
)
def test_a_plan_has_the_stages_that_were_asked_for(stages: Any) -> None:
    plan = planned(stages=stages)
    found = [(s.last_layer - s.first_layer + 1, s.mesh.size) for s in plan.stages]
    each = 8 // len(stages)
    assert found == [(s, each) if isinstance(s, int) else (s[0], s[1] * s[2]) for s in stages]


@pytest.mark.parametrize(("schedule", "name"), [(None, "interleaved-1f1b:2"), ("looped-bfs", "l")])
def test_ranks_have_chunks(schedule: str | None, name: str) -> None:
    plan = planned(stages=2, chunks=2, schedule=schedule)
    assert plan.schedule.startswith(name)
    assert len(plan.stages) == 4
    assert len({stage.mesh.device_ids for stage in plan.stages}) == 2


def test_a_mesh_has_the_shape_that_was_asked_for() -> None:
    for shape in ((4, 2), (2, 4), (8, 1), (1, 8)):
        plan = planned(mesh=shape)
        assert [s.mesh.shape for s in plan.stages] == [tuple(n for n in shape if n > 1)]
    assert planned(mesh=(4, 2), strategy="megatron").stages[0].mesh.shape == (4, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": 0}, r"a number of pipeline ranks, .*; got stages=0"),
        ({"stages": ()}, r"got stages=\(\)"),
        ({"stages": "2"}, r"got stages='2'"),
        ({"stages": (1, (2, 1, 4))}, r"got stages=\(1, \(2, 1, 4\)\)"),
        ({"stages": True}, r"got stages=True"),
        ({"zero": 4}, r"from 0 to 3; got zero=4"),
        ({"dp": 0}, r"dp is a whole number from 1 on, or None; got dp=0"),
        ({"tp": 1.0}, r"got tp=1.0"),
        ({"mesh": (2, 2, 2)}, r"mesh is two numbers .*; got mesh=\(2, 2, 2\)"),
        ({"mesh": 8}, r"got mesh=8"),
        ({"mesh": (2, 4), "dp": 2}, r"mesh=\(2, 4\): leave one out"),
        ({"dp": 2, "strategy": "zero"}, r"strategy='zero' says how .*; got dp with it"),
        ({"chunks": 2, "schedule": "1f1b"}, r"got '1f1b:2'"),
        ({"chunks": 0}, r"got chunks=0"),
    ],
)
def test_an_option_that_cannot_be_is_refused_where_it_is_given(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        PlanOptions(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": 5}, r"got stages=5 for 4 layers on 8 devices: take fewer"),
        ({"stages": 4, "chunks": 2}, r"2 stages of a layer or more; got stages=4"),
        ({"dp": 4, "tp": 4}, r"stages \* dp \* tp is the number of devices, 8; got dp=4, tp=4"),
        ({"stages": 2, "dp": 2, "tp": 4}, r"got dp=2, tp=4, stages=2: leave one of them out"),
        ({"stages": 2, "dp": 8}, r"at most, and dp divides, .*, 8; got dp=8, stages=2: leave one"),
        ({"tp": 3}, r"stages \* tp is at most, and tp divides, .*, 8; got tp=3: choose another"),
        ({"mesh": (1, 3)}, r"stages \* the devices of mesh is .*, 8; got mesh=\(1, 3\): choose"),
        ({"stages": 2, "mesh": (1, 2)}, r"got mesh=\(1, 2\), stages=2: leave one of them out"),
        ({"stages": (2, 1)}, r"cut into 4; got \[2, 1\], which are 3"),
        ({"stages": (1, 1, 2)}, r"stages= with 3 ranks for the 8 devices"),
        ({"stages": (2, 1, 1), "chunks": 2}, r"2 stages on each rank; got stages= with 3 stages"),
        ({"stages": ((2, 1, 4), (2, 1, 2))}, r"all devices .*; got 1x4, 1x2 with 6 devices"),
        ({"stages": ((2, 1, 3), (2, 1, 5))}, r"got 1x3, 1x5 with 8 devices"),
    ],
)
def test_ways_that_the_step_cannot_have_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        planned(**options)


def test_if_nothing_fits_the_error_says_what_was_asked_for() -> None:
    with pytest.raises(NoPlanError, match=r"no plan with stages=2, zero=0 runs on"):
        planned(stages=2, zero=0, memory_bytes=90_000)
    with pytest.raises(NoPlanError, match=r"no plan with dp=8 runs on .*divide"):
        planned(dp=8)  # microbatches have four examples


def test_a_pin_of_operands_does_not_undo_the_ways() -> None:
    assert planned(dp=4, pin={"dot_general": "S0R"}).stages
    with pytest.raises(NoPlanError, match=r"no plan with dp=4 runs on .* with pins of dot_general"):
        planned(dp=4, pin={"dot_general": "RR,RR"})  # each device would compute all examples


@given(st.sampled_from([(1, 2), (1, 4), (2, 4)]), st.sampled_from([None, 1, 2]))
def test_there_is_one_mesh_and_a_way_for_each_stage_of_zero(
    submesh: tuple[int, int], tp: int | None
) -> None:
    pins = ParallelPins(dp=None, tp=tp, zero=None if tp else 2)
    assert len(logical_meshes(submesh, DevicePool(CLUSTER), pins)) == 1
    ways = [option.way for option in options_of(submesh, DevicePool(CLUSTER), pins)]
    assert ways == (list(PINNED_WAYS) if tp else ["zero-2"])


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_what_was_asked_for_computes_what_one_device_does(zero: int) -> None:
    example = small_gpt()
    step = mw.parallelize(
        example.function,
        cluster=CLUSTER.resized(n_hosts=2, devices_per_host=4),
        batch_argnums=2,
        microbatches=2,
        stages=2,
        dp=2,
        tp=2,
        zero=zero,
    )
    params, state = example.params, example.opt_state
    expected = example.params, example.opt_state
    for _ in range(2):
        params, state, loss = step(params, state, example.batch)
        *expected, loss_there = example.function(*expected, example.batch)
        np.testing.assert_allclose(loss, loss_there, rtol=1e-5)
    assert [stage.mesh.shape for stage in step.plan.stages] == [(2, 2), (2, 2)]


@pytest.mark.parametrize(
    ("text", "stages"),
    [("8", 8), ("3,3,2", (3, 3, 2)), ("4,", None), ("12x1x4,12x1x4", ((12, 1, 4), (12, 1, 4)))],
)
def test_the_command_line_takes_stages(text: str, stages: Any) -> None:
    arguments = PlanArguments(stages=text, dp=2, mesh=None)
    if stages is None:
        with pytest.raises(BadParameter, match="--stages takes numbers, joined by x; got ''"):
            arguments.how()
    else:
        assert arguments.how() == PlanOptions(stages=stages, dp=2)


def test_the_command_line_says_which_options_contradict() -> None:
    with pytest.raises(BadParameter, match="leave one out") as refused:
        PlanArguments(mesh="2x4", tp=2).how()
    assert refused.value.param_hint == "'--tp', '--mesh'"
