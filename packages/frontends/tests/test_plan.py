"""A plan is data: what is written is what is read."""

import json
import random
from functools import cache
from pathlib import Path

import pytest
from frontends.errors import OutputError, PlanError
from frontends.jax.testing import EXAMPLES
from frontends.layers import LayeredStep, layer
from frontends.plan import FORMAT, Plan
from frontends.testing import random_plan
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Mesh

MESHES = (
    Mesh((2, 2), ("x", "y"), (0, 1, 2, 3)),
    Mesh((2,), ("x",), (4, 5)),
    Mesh((1,), ("x",), (6,)),
)


@cache
def layered(name: str) -> LayeredStep:
    return layer(EXAMPLES[name]().trace().step, 4)


@given(
    st.sampled_from(["mlp", "tied", "clipped"]),
    st.lists(st.sampled_from(MESHES), min_size=1, max_size=3),
    st.integers(0, 2**32),
)
def test_json_round_trip_of_random_plans(name: str, meshes: list[Mesh], seed: int) -> None:
    plan = random_plan(layered(name), meshes, random.Random(seed))
    assert Plan.from_json(plan.to_json()) == plan


def test_json_round_trip_of_a_priced_plan(example_plan: Plan, tmp_path: Path) -> None:
    assert Plan.from_json(example_plan.to_json()) == example_plan
    example_plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == example_plan
    assert hash(Plan.load(tmp_path / "plan.json")) == hash(example_plan)


def test_json_is_plain_data_with_a_format_number(example_plan: Plan) -> None:
    data = json.loads(example_plan.to_json())
    assert data["format"] == FORMAT
    assert data["stages"][0]["inputs"][0]["spec"] == "RS1"


def test_repr_says_what_matters(example_plan: Plan) -> None:
    assert repr(example_plan) == (
        "<Plan: 2 stages on meshes 2x2 + 4, 8 microbatches, 1f1b, 231 ms a step predicted>"
    )


def test_devices_of_all_stages(example_plan: Plan) -> None:
    assert example_plan.n_devices == 8
    assert example_plan.device_ids == tuple(range(8))


@pytest.mark.parametrize("text", ["", "no json", "[]", "3", "null", "{}", '{"stages": []}'])
def test_rejects_what_is_no_plan(text: str) -> None:
    with pytest.raises(PlanError, match="a plan is a JSON object with a format number; got"):
        Plan.from_json(text)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_rejects_other_formats(example_plan: Plan, version: object) -> None:
    data = {**json.loads(example_plan.to_json()), "format": version}
    with pytest.raises(PlanError, match=rf"reads plans of format 1; got format {version}: plan ag"):
        Plan.from_json(json.dumps(data))


DAMAGE = {
    "a field is missing": lambda data: data.pop("schedule"),
    "a field is unknown": lambda data: data.update(colour="red"),
    "stages are no list": lambda data: data.update(stages=3),
    "a stage is no object": lambda data: data["stages"].append("stage"),
    "a spec is none": lambda data: data["stages"][0]["inputs"][0].update(spec="Q9"),
    "a spec is no text": lambda data: data["stages"][0]["inputs"][0].update(spec=7),
    "a mesh has a name too few": lambda data: data["stages"][0]["mesh"].update(axis_names=["x"]),
    "a transfer lacks its value": lambda data: data["transfers"][0].pop("value"),
    "a collective has no axes": lambda data: data["stages"][0]["collectives"][0].update(axes=None),
    "alternatives are no objects": lambda data: data.update(alternatives=["zero"]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_rejects_damaged_plans(example_plan: Plan, damage: str) -> None:
    data = json.loads(example_plan.to_json())
    DAMAGE[damage](data)
    with pytest.raises(PlanError, match="the plan is damaged: "):
        Plan.from_json(json.dumps(data))


def test_rejects_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"read from a JSON file; .*nowhere\.json: .*No such file"):
        Plan.load(tmp_path / "nowhere.json")
    with pytest.raises(PlanError, match=r"read from a JSON file; .*directory"):
        Plan.load(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanError, match=r"read from a JSON file; .*binary: .*decode"):
        Plan.load(tmp_path / "binary")


def test_says_where_a_plan_could_not_be_written(example_plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"written to a file; .*nowhere/plan\.json: No such file"):
        example_plan.save(tmp_path / "nowhere" / "plan.json")
