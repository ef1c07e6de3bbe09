"""Layouts of a plan as PartitionSpecs of JAX, and pins that are such."""

from typing import Any

import frontends.jax as mw
import jax
import pytest
from costmodel import Cluster
from frontends.errors import PlanError
from frontends.jax.testing import EXAMPLES, assert_same
from jax.sharding import NamedSharding, PartitionSpec

CLUSTER = Cluster.preset("virtual-cpu").resized(devices_per_host=4)
WAYS: list[dict[str, Any]] = [
    {"dp": 4},
    {"tp": 4},
    {"mesh": (2, 2)},
    {"zero": 3, "microbatches": 2},
]
NAMES = ("params", "opt_state", "batch")


@pytest.mark.parametrize("ways", WAYS, ids=str)
def test_plain_jit_runs_in_the_layouts_of_a_plan(ways: dict[str, Any]) -> None:
    example = EXAMPLES["gpt"]()
    planned = mw.plan_for(example.function, example.arguments, CLUSTER, stages=1, **ways)
    (specs,) = mw.partition_specs(planned.plan)
    (stage,) = planned.plan.stages
    devices = jax.devices()[: stage.mesh.size]
    mesh = jax.make_mesh(stage.mesh.shape, stage.mesh.axis_names, devices=devices)
    shardings = tuple(
        jax.tree_util.tree_map_with_path(
            lambda path, _, name=name: NamedSharding(
                mesh, specs[name + jax.tree_util.keystr(path)]
            ),
            argument,
        )
        for name, argument in zip(NAMES, example.arguments, strict=True)
    )
    found = jax.jit(example.function, in_shardings=shardings)(*example.arguments)
    assert_same(jax.tree.leaves(found), example.function(*example.arguments), tolerance=1e-4)
    pinned = mw.plan_for(example.function, example.arguments, CLUSTER, stages=1, pin=specs, **ways)
    assert mw.partition_specs(pinned.plan) == [specs]


def test_each_stage_of_a_pipeline_has_the_layouts_of_what_it_reads() -> None:
    example = EXAMPLES["tied"]()
    plan = mw.plan_for(example.function, example.arguments, CLUSTER, stages=2, microbatches=2).plan
    first, *_, last = mw.partition_specs(plan)
    assert "params['embedding']" in first
    assert "params['embedding']" in last
    assert "batch[1]" in last
    assert not any(name.startswith("early.") for name in (*first, *last))


PINS: dict[str, tuple[Any, str]] = {
    "no axis": (PartitionSpec("tensor"), "got 'tensor', the mesh has"),
    "too many dims": (PartitionSpec("x", None, None), "which has 2 dims"),
    "numbers": ((0, 1), "a dim has the name of an axis"),
    "an axis twice": (PartitionSpec("x", "x"), "a pin is a spec or a stage"),
    "no spec": (object(), "a pin is a spec with a letter"),
}


@pytest.mark.parametrize("name", PINS)
def test_a_pin_that_is_no_layout_is_refused(name: str) -> None:
    example = EXAMPLES["gpt"]()
    pin, why = PINS[name]
    with pytest.raises(PlanError, match=why):
        mw.plan_for(example.function, example.arguments, CLUSTER, pin={"params['head']": pin})
