"""A plan is data: what is written is what is read."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from costmodel import Cluster
from frontends.answer.plan import Plan
from frontends.answer.plan_json import FORMAT
from frontends.errors import OutputError, PlanError
from frontends.jax.testing import EXAMPLES
from frontends.layers.layers import LayeredStep, layer
from frontends.search.plan_options import PlanOptions
from frontends.search.planner import Planner
from frontends.testing import plans, random_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from shardspec import Mesh

GOLDEN = Path(__file__).parent / "golden"

MESHES = (
    Mesh((2, 2), ("x", "y"), (0, 1, 2, 3)),
    Mesh((2,), ("x",), (4, 5)),
    Mesh((1,), ("x",), (6,)),
)


@cache
def layered(name: str) -> LayeredStep:
    return layer(EXAMPLES[name]().trace().step, 4)


@settings(max_examples=max(100, settings().max_examples // 5))
@given(
    st.sampled_from(["mlp", "tied", "clipped"]),
    st.lists(st.sampled_from(MESHES), min_size=1, max_size=3),
    st.integers(0, 2**32),
)
def test_json_round_trip_of_random_plans(name: str, meshes: list[Mesh], seed: int) -> None:
    plan = random_plan(layered(name), meshes, random.Random(seed))
    assert Plan.from_json(plan.to_json()) == plan


@settings(max_examples=settings().max_examples // 2)
@given(plans())
def test_json_round_trip_of_any_plan(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("name", ["example_plan", "priced_plan"])
def test_json_round_trip_of_a_file(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    plan: Plan = request.getfixturevalue(name)
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert hash(loaded) == hash(plan)
    assert loaded.to_json() == plan.to_json()


def test_the_same_step_gives_the_same_json_twice(priced_plan: Plan) -> None:
    again = Planner(
        layered("mlp"),
        Cluster.preset("two-hosts").resized(n_hosts=2, devices_per_host=2),
        PlanOptions(strategy="equal_layers"),
    ).best()
    assert again.to_json() == priced_plan.to_json()


def test_json_is_plain_data_with_a_format_number(example_plan: Plan) -> None:
    data = json.loads(example_plan.to_json())
    assert data["stages"][0]["inputs"][0]["spec"] == "RS1"
    changes = ({}, {"remat": "all"}, {"padded_to": 6}, {"remat": "all", "padded_to": 6})
    texts = [replace(example_plan, **change).to_json() for change in changes]
    versions = [json.loads(text)["format"] for text in texts]
    assert versions == [3, 4, 5, 5], "the first that has all fields, which older releases read"


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


@pytest.mark.parametrize("version", [0, -1, "1", True, None, 1.0])
def test_rejects_what_is_no_format(example_plan: Plan, version: object) -> None:
    data = {**json.loads(example_plan.to_json()), "format": version}
    message = rf"reads plans of formats 1 to {FORMAT}; got format {version!r}: plan again"
    with pytest.raises(PlanError, match=message):
        Plan.from_json(json.dumps(data))


def test_a_newer_format_is_called_newer(example_plan: Plan) -> None:
    data = {**json.loads(example_plan.to_json()), "format": FORMAT + 1}
    message = rf"by a newer frontends, in format {FORMAT + 1}; .* 1 to {FORMAT}: update frontends"
    with pytest.raises(PlanError, match=message):
        Plan.from_json(json.dumps(data))


def test_nothing_is_there_twice(priced_plan: Plan) -> None:
    data = json.loads(priced_plan.to_json())
    assert len(data["shardings"]["shared"]["Cluster"]) == 1
    assert [stage["sharding"] for stage in data["stages"]] == [0, 1]
    assert all(stage["placements"] is None for stage in data["stages"])


def test_there_is_a_golden_file_of_each_format() -> None:
    names = [path.name for path in sorted(GOLDEN.glob("plan_format_*.json"))]
    assert names == [f"plan_format_{version}.json" for version in range(1, FORMAT + 1)]


@pytest.mark.parametrize("version", range(1, FORMAT + 1))
def test_files_of_every_format_are_read(version: int) -> None:
    path = GOLDEN / f"plan_format_{version}.json"
    assert json.loads(path.read_text())["format"] == version
    plan = Plan.load(path)
    assert len(plan.stages) == 2
    assert Plan.from_json(plan.to_json()) == plan


def test_format_1_is_this_format_without_shardings(example_plan: Plan) -> None:
    assert Plan.load(GOLDEN / "plan_format_1.json") == example_plan


@pytest.mark.parametrize("version", range(3, FORMAT + 1))
def test_formats_are_written_as_they_were(
    version: int, check_golden: Callable[[str, str], None]
) -> None:
    name = f"plan_format_{version}.json"
    check_golden(name, Plan.load(GOLDEN / name).to_json())


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
    "a sharding is none": lambda data: data.update(shardings={"graph": 3}),
    "a stage has a sharding that is not there": lambda d: d["stages"][0].update(sharding=7),
    "placements are nowhere": lambda data: data["stages"][0].update(placements=None),
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
