"""A split backward: its parts are those of the programs, and take as long as the whole."""

from functools import cache

import pipesched
import pytest
from costmodel import Cluster
from frontends.answer.plan import Plan
from frontends.jax.testing import EXAMPLES
from frontends.layers.layers import LayeredStep, layer
from frontends.layers.split_backward import levels_of, parts_of, sent_backwards
from frontends.plan.plan_fields import Conversion, Stored
from frontends.plan.schedule import each_copy, most_held, names_that_run, schedule_of
from frontends.program.chunks import Chunk
from frontends.program.predict import simulate
from frontends.program.program import build_program
from frontends.search.plan_options import PlanOptions
from frontends.search.planner import Planner
from frontends.step.step import BACKWARD
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)


@cache
def layered(name: str) -> LayeredStep:
    return layer(EXAMPLES[name]().trace(4).step, 4)


@cache
def found(name: str, schedule: str = "zb-h1") -> Plan:
    return Planner(
        layered(name), CLUSTER, PlanOptions(strategy="equal_layers", schedule=schedule)
    ).best()


def made_in_backward(step: LayeredStep, chunk: Chunk) -> set[Stored]:
    """What a chunk makes or converts there."""
    made: set[Stored] = set()
    for action in chunk.actions:
        if action.phase == BACKWARD:
            if isinstance(action, Conversion):
                made.add(Stored(action.value, action.dst))
            else:
                op = next(o for o in step.step.graph.operators if o.name == action.operator)
                made.update(map(Stored, op.outputs, action.results))
    return made


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_left_between_the_parts_is_what_one_program_leaves_to_the_other(name: str) -> None:
    step, plan = layered(name), found(name)
    chunks = build_program(step.step, plan).chunks
    for index, stage in enumerate(plan.stages):
        mine = [c for c in chunks if c.stage == index and BACKWARD in c.phases]
        first, second = ([c for c in mine if c.level == level] for level in (0, 1))
        made = {slot for c in first for slot in made_in_backward(step, c)}
        made.update(
            Stored(t.value, t.dst_spec)
            for t in plan.transfers
            if t.destination == index and t.phase == "backward"
        )
        left = {slot for c in second for slot in c.reads} & made
        n_bytes = sum(
            Layout(value.shape, stage.mesh, slot.spec).local_bytes(value.itemsize)
            for slot in left
            for value in [step.step.graph.value(slot.value)]
        )
        assert stage.sharding is not None
        leaving = sent_backwards(plan.transfers, index)
        assert parts_of(stage.sharding, leaving).between_bytes == n_bytes
    assert len(plan.stages) == 2
    assert n_bytes > 0


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_parts_take_as_long_as_the_whole(name: str) -> None:
    for index, stage in enumerate(found(name).stages):
        assert stage.sharding is not None
        leaving = sent_backwards(found(name).transfers, index)
        parts = parts_of(stage.sharding, leaving)
        assert 0 <= parts.weight_gradient_s <= stage.backward_s * (1 + 1e-9)
        nothing = parts_of(stage.sharding, ())
        assert nothing.weight_gradient_s == pytest.approx(stage.backward_s)
        graph = stage.sharding.graph
        everything = {name for op in graph.operators for name in op.outputs}
        assert set(levels_of(graph.operators, everything).values()) <= {0}
        assert parts_of(stage.sharding, everything).between_bytes == 0


def test_a_weight_gradient_fills_what_would_be_idle() -> None:
    split, whole = found("gpt"), found("gpt", "1f1b")
    assert [s.placements for s in split.stages] == [s.placements for s in whole.stages]
    idle = [simulate(p.stages, p.transfers, schedule_of(p)) for p in (split, whole)]
    assert idle[0].makespan_s < idle[1].makespan_s
    assert split.step_s < whole.step_s
    assert split.memory_bytes >= whole.memory_bytes


@given(st.sampled_from(names_that_run()), st.integers(1, 4), st.integers(1, 12))
def test_microbatches_held_are_those_of_the_timeline(name: str, n_ranks: int, n: int) -> None:
    try:
        schedule = pipesched.make(name, n_ranks * pipesched.schedule_entry(name).stages_a_rank, n)
    except pipesched.ArgumentError:
        return  # not defined for these sizes
    held, between = most_held(schedule)
    timeline = pipesched.simulate(schedule, pipesched.Costs(1.0, 1.0))
    of_rank = [0] * n_ranks
    (route,) = each_copy(schedule).placement.routes
    for stage, rank in enumerate(route):
        of_rank[rank] += held[stage]
    if len(route) == n_ranks:
        assert of_rank == [round(n) for n in timeline.peak_bytes]
    else:  # stages of one rank need not hold most at the same time
        assert all(a >= b for a, b in zip(of_rank, timeline.peak_bytes, strict=True))
    assert all(b <= h for b, h in zip(between, held, strict=True))
