"""Chunks are straight programs: each reads what is there and leaves what others need."""

import random
from dataclasses import replace
from functools import cache

import pytest
from autoshard import Operator
from frontends.answer.plan import Plan
from frontends.errors import PlanError
from frontends.jax.testing import EXAMPLES
from frontends.layers.layers import LayeredStep, layer
from frontends.plan.plan_fields import Conversion, ShardedOperator, Stored
from frontends.program.chunks import Chunk, stages_of_operators
from frontends.program.program import build_program
from frontends.step.step import APPLY, FORWARD
from frontends.testing import random_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from shardspec import Mesh, Spec

MESHES = (
    Mesh((2, 2), ("x", "y"), (0, 1, 2, 3)),
    Mesh((2,), ("x",), (4, 5)),
    Mesh((1,), ("x",), (6,)),
)


@cache
def layered(name: str) -> LayeredStep:
    return layer(EXAMPLES[name]().trace().step, 4)


def plans(step: LayeredStep) -> st.SearchStrategy[Plan]:
    return st.builds(
        lambda seed, meshes: random_plan(step, meshes, random.Random(seed)),
        st.integers(0, 2**32),
        st.lists(st.sampled_from(MESHES), min_size=1, max_size=3),
    )


@settings(max_examples=max(100, settings().max_examples // 5))
@given(st.sampled_from(sorted(EXAMPLES)), st.data())
def test_a_chunk_reads_what_is_there_and_runs_every_operator_once(
    name: str, data: st.DataObject
) -> None:
    step = layered(name)
    plan = data.draw(plans(step))
    chunks = build_program(step.step, plan).chunks
    for index, stage in enumerate(plan.stages):
        there = {*stage.inputs}
        for chunk in (c for c in chunks if c.stage == index):
            assert set(chunk.reads) <= there
            live = set(chunk.reads)
            assert len(live) == len(chunk.reads)
            converted: set[tuple[int, str, Spec]] = set()
            for action in chunk.actions:
                if isinstance(action, Conversion):
                    assert (action.phase, action.value, action.dst) not in converted
                    converted.add((action.phase, action.value, action.dst))
                live |= follow(step, action, live)
            phases = [action.phase for action in chunk.actions]
            assert phases == sorted(phases)
            assert set(phases) <= set(chunk.phases)
            assert {*chunk.writes, *chunk.totals} <= live - set(chunk.reads)
            there |= {*chunk.writes, *chunk.totals}
        assert set(stage.outputs) <= there
    run = [a.operator for c in chunks for a in c.actions if isinstance(a, ShardedOperator)]
    assert sorted(run) == sorted(op.name for op in step.step.graph.operators)


def follow(
    step: LayeredStep, action: Conversion | ShardedOperator, live: set[Stored]
) -> set[Stored]:
    """What an action makes; everything it reads must be live."""
    made = made_by(step, action)
    if isinstance(action, ShardedOperator):
        operands = operator(step, action.operator).inputs
        assert set(map(Stored, operands, action.operands)) <= live
    else:
        assert Stored(action.value, action.src) in live
    return made


def made_by(step: LayeredStep, action: Conversion | ShardedOperator) -> set[Stored]:
    if isinstance(action, ShardedOperator):
        return set(map(Stored, operator(step, action.operator).outputs, action.results))
    return {Stored(action.value, action.dst)}


def operator(step: LayeredStep, name: str) -> Operator:
    return next(op for op in step.step.graph.operators if op.name == name)


@settings(max_examples=max(100, settings().max_examples // 5))
@given(st.sampled_from(sorted(EXAMPLES)), st.data())
def test_a_chunk_writes_only_what_is_read_later(name: str, data: st.DataObject) -> None:
    step = layered(name)
    plan = data.draw(plans(step))
    chunks = build_program(step.step, plan).chunks
    for i, chunk in enumerate(chunks):
        later = [c for c in chunks[i + 1 :] if c.stage == chunk.stage]
        read = {slot for c in later for slot in c.reads}
        assert set(chunk.writes) <= read | set(plan.stages[chunk.stage].outputs)
        in_apply = {slot for c in later if c.phase == APPLY for slot in c.reads}
        sums = {s for s in in_apply if s.value in step.step.summed}
        made = {slot for action in chunk.actions for slot in made_by(step, action)}
        assert set(chunk.totals) == (sums & made if chunk.phase != APPLY else set())


@settings(max_examples=max(100, settings().max_examples // 5))
@given(st.sampled_from(sorted(EXAMPLES)), st.data())
def test_an_update_is_written_where_its_state_is_read(name: str, data: st.DataObject) -> None:
    step = layered(name)
    plan = data.draw(plans(step))
    replaced = {o.value: o.alias for o in step.step.graph.outputs if o.alias is not None}
    for chunk in build_program(step.step, plan).chunks:
        updates = [slot for slot in chunk.writes if slot.value in replaced]
        state = [Stored(replaced[slot.value], slot.spec) for slot in updates]
        both = [(old, new) for old, new in zip(state, updates, strict=True) if old in chunk.reads]
        assert list(chunk.reads[: len(both)]) == [old for old, _ in both]
        assert list(chunk.writes[: len(both)]) == [new for _, new in both]


@settings(max_examples=max(100, settings().max_examples // 5))
@given(st.sampled_from(sorted(EXAMPLES)), st.data())
def test_every_conversion_of_the_plan_is_made_once(name: str, data: st.DataObject) -> None:
    step = layered(name)
    plan = data.draw(plans(step))
    chunks = build_program(step.step, plan).chunks
    for index, stage in enumerate(plan.stages):
        made = [
            action
            for chunk in chunks
            if chunk.stage == index
            for action in chunk.actions
            if not isinstance(action, ShardedOperator)
        ]
        assert len(made) == len(set(made))
        assert set(made) == set(stage.conversions)


def levels(chunks: tuple[Chunk, ...], stage: int) -> list[int]:
    return [c.level for c in chunks if c.stage == stage and c.phase == APPLY]


def three_stages(name: str) -> tuple[LayeredStep, Plan]:
    step = layered(name)
    return step, random_plan(step, MESHES, random.Random(0))


def test_apply_of_independent_parameters_is_one_chunk() -> None:
    step, plan = three_stages("mlp")
    chunks = build_program(step.step, plan).chunks
    assert [len(levels(chunks, stage)) for stage in range(3)] == [1, 1, 1]


def test_clipping_by_the_global_norm_cuts_apply_into_levels() -> None:
    step, plan = three_stages("clipped")
    chunks = build_program(step.step, plan).chunks
    per_stage = [levels(chunks, stage) for stage in range(3)]
    assert max(map(len, per_stage)) >= 2
    stage_of = stages_of_operators(plan)
    level_of = {
        a.operator: c.level
        for c in chunks
        if c.phase == APPLY
        for a in c.actions
        if isinstance(a, ShardedOperator)
    }
    graph = step.step.graph
    maker = {n: op.name for op in graph.operators if op.phase == APPLY for n in op.outputs}
    for op in graph.operators:
        for name in op.inputs if op.phase == APPLY else ():
            if name in maker:
                crosses = stage_of[maker[name]] != stage_of[op.name]
                assert level_of[maker[name]] + crosses <= level_of[op.name]


def test_chunks_print_what_they_are() -> None:
    step, plan = three_stages("clipped")
    texts = [str(chunk) for chunk in build_program(step.step, plan).chunks]
    assert texts[:2] == ["forward of stage 0", "backward of stage 0"]
    assert len(set(texts)) == len(texts)
    assert any(text.startswith("apply.1 of stage") for text in texts)


def test_rejects_a_plan_of_another_step() -> None:
    _, plan = three_stages("mlp")
    with pytest.raises(PlanError, match="made for another step: it places other operators"):
        build_program(layered("skip").step, plan)


def test_rejects_a_plan_that_lacks_a_conversion() -> None:
    for seed in range(10):
        step = layered("mlp")
        plan = random_plan(step, MESHES[:1], random.Random(seed))
        (stage,) = plan.stages
        forward = [c for c in stage.conversions if c.phase == FORWARD]
        if forward:
            kept = tuple(c for c in stage.conversions if c != forward[0])
            broken = replace(plan, stages=(replace(stage, conversions=kept),))
            with pytest.raises(
                PlanError, match=r"stage 0 has no conversion of .* in forward: plan again"
            ):
                build_program(step.step, broken)
            return
    raise AssertionError("no random plan converted anything")
