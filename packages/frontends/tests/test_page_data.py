"""What the script of a plan's page is given is what the plan says."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from costmodel import Cluster
from frontends.answer.plan import Plan
from frontends.errors import PlanError
from frontends.jax.testing import EXAMPLES
from frontends.layers.layers import layer
from frontends.program.predict import timeline_of
from frontends.report import page_timeline
from frontends.report.numbered import Numbered
from frontends.report.page_data import named, page_data
from frontends.report.page_timeline import UNITS
from frontends.search.plan_options import PlanOptions
from frontends.search.planner import Planner
from frontends.testing import plans
from hypothesis import given, settings
from pipesched import PipeschedError
from shardspec import Layout, Mesh, Spec, shard


def data_of(plan: Plan) -> Any:
    (document,) = json.loads(page_data([plan]))
    return document


def names_of(data: Any) -> list[str]:
    """The names, read as the script reads them."""
    stems, numbers = data["names"]["stems"], data["names"]["numbers"]
    return [
        stems[stem] if number < 0 else f"{stems[stem]}.{number}"
        for stem, number in zip(numbers[::2], numbers[1::2], strict=True)
    ]


def blocks_of(timeline: Any) -> list[list[tuple[str, int, int, int, int]]]:
    """By rank: kind, stage, microbatch, start and stop of each block, in units."""
    ranks = []
    for flat in timeline["ranks"]:
        blocks, at = [], 0
        for which, microbatch, gap in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
            kind, stage, length, _ = timeline["blocks"][which]
            start = at + gap
            at = start + length
            blocks.append((timeline["kinds"][kind][0], stage, microbatch, start, at))
        ranks.append(blocks)
    return ranks


@settings(max_examples=settings().max_examples // 2)
@given(plans())
def test_blocks_are_the_simulated_pipeline(plan: Plan) -> None:
    data = data_of(plan)["timeline"]
    try:
        timeline = timeline_of(plan)
    except (PlanError, PipeschedError):
        assert data is None
        return
    if data is None:
        assert plan.step_s == timeline.makespan_s == 0
        return
    unit = data["unit"]
    assert unit * UNITS == pytest.approx(max(plan.step_s, timeline.makespan_s))
    found = [b for rank in blocks_of(data) for b in rank if b[2] >= 0]
    events = [e for e in timeline.events if e.action.edge is None]
    events = [e for e in events if e.action.microbatch is not None]
    assert len(found) == len(events)
    for block, event in zip(found, events, strict=True):
        assert block[2] == event.action.microbatch
        assert abs(block[3] - event.start_s / unit) <= 1
        assert abs(block[4] - event.stop_s / unit) <= 2
    assert len(data["sends"]) == len(timeline.transfers)


@pytest.fixture(scope="module")
def summed_plan() -> Plan:
    """A plan of one stage that sums gradients up."""
    step = EXAMPLES["mlp"]().trace().step
    cluster = Cluster.preset("two-hosts").resized(n_hosts=1, devices_per_host=4)
    return Planner(layer(step, 2), cluster, PlanOptions(strategy="data_parallel")).best()


def test_the_parts_of_a_block_take_its_time(priced_plan: Plan) -> None:
    data = data_of(priced_plan)["timeline"]
    for kind, stage, length, inside in data["blocks"]:
        name = data["kinds"][kind][0]
        if name in ("forward", "backward", "apply"):
            parts = sum(seconds for *_, seconds in data["insides"][inside])
            assert parts == pytest.approx(length * data["unit"], rel=0.02), (name, stage)


def test_the_parts_have_the_collectives_of_the_plan(summed_plan: Plan) -> None:
    data = data_of(summed_plan)["timeline"]
    names = names_of(data_of(summed_plan))
    shown = {(names[n], kind) for run in data["insides"] for n, kind, _ in run if kind}
    kinds = [name for name, _ in data["parts"]]
    of_plan = {(c.value, kinds.index(c.kind)) for s in summed_plan.stages for c in s.collectives}
    assert shown == of_plan
    assert shown


def test_a_long_pipeline_keeps_its_ends(
    example_plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_timeline, "MOST_BLOCKS", 100)
    data = data_of(replace(example_plan, microbatches=512))["timeline"]
    numbers = {block[2] for rank in blocks_of(data) for block in rank}
    assert {0, 511} <= numbers
    assert 256 not in numbers
    start, stop = data["leftOut"]
    assert 0 < start < stop < UNITS


def test_who_holds_what_is_what_a_tensor_is_cut_into(priced_plan: Plan) -> None:
    data = data_of(priced_plan)
    names, tensors = names_of(data), data["tensors"]
    for index, of_stage in enumerate(tensors["stages"]):
        stage = priced_plan.stages[index]
        assert stage.sharding is not None
        kept = dict(stage.sharding.input_specs)
        values, at, name = of_stage["values"], 0, 0
        seen = set()
        while at < len(values):
            name += values[at]
            seen.add(names[name])
            layout = tensors["layouts"][values[at + 2]]
            at += 4 + 2 * values[at + 3]
            value = stage.sharding.graph.value(names[name])
            assert (tuple(layout["shape"]), layout["dtype"]) == (value.shape, value.dtype)
            spec = Spec.parse(layout["spec"])
            assert kept.get(names[name], spec) == spec
            _check_parts(layout, stage.mesh, spec, of_stage["devices"])
        graph = stage.sharding.graph
        assert seen == {*graph.inputs, *(n for op in graph.operators for n in op.outputs)}


def _check_parts(layout: Any, mesh: Mesh, spec: Spec, devices: list[int]) -> None:
    """The parts on the page are those of an array that shardspec cuts."""
    whole = np.arange(np.prod(layout["shape"], dtype=int)).reshape(layout["shape"])
    no_sums = Spec(spec.dims)
    shards = shard(Layout(whole.shape, mesh, no_sums), whole)
    for place, device in enumerate(devices):
        indices = [np.arange(n) for n in whole.shape]
        for dim, cuts, who in layout["dims"]:
            indices[dim] = np.concatenate([np.arange(*run) for run in cuts[who[place]]])
        part = whole[np.ix_(*indices)] if whole.ndim else whole
        np.testing.assert_array_equal(part, shards[device])


@pytest.mark.parametrize("name", ["add.12", "add.012", "a.b.3", ".5", "x", "w['a.1']", "1.2", "a."])
def test_names_read_back(name: str) -> None:
    table: Numbered[str] = Numbered()
    assert table[name] == 0
    assert names_of({"names": named(table)}) == [name]


def test_the_data_can_stand_in_a_page(example_plan: Plan) -> None:
    named = replace(example_plan.stages[0], inputs=example_plan.stages[0].inputs)
    text = page_data([replace(example_plan, stages=(named, example_plan.stages[1]))])
    assert not set("<>&") & set(text)
