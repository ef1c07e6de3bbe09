"""A plan that was searched fits together; whatever is wrong with another one is found and named."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from costmodel import Cluster
from frontends.answer.plan import Plan
from frontends.errors import VerificationError
from frontends.jax.testing import EXAMPLES
from frontends.layers.layers import LayeredStep, layer
from frontends.plan.plan_fields import Collective
from frontends.search.plan_options import PlanOptions
from frontends.search.planner import Planner
from frontends.testing import random_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from shardspec import Mesh, Spec

ONE_HOST = Cluster.preset("two-hosts").resized(n_hosts=1, devices_per_host=4)


@cache
def layered(name: str) -> LayeredStep:
    return layer(EXAMPLES[name]().trace().step, 4)


def with_stage(plan: Plan, index: int, **changes: object) -> Plan:
    stages = list(plan.stages)
    stages[index] = replace(stages[index], **changes)  # type: ignore[arg-type]
    return replace(plan, stages=tuple(stages))


@pytest.mark.parametrize("strategy", ["search", "data_parallel", "megatron", "zero"])
@pytest.mark.parametrize("name", ["mlp", "tied", "skip"])
def test_plans_of_every_strategy_fit_together(name: str, strategy: str) -> None:
    plan = Planner(layered(name), ONE_HOST, PlanOptions(strategy=strategy)).best()
    verification = plan.verify()
    assert not verification.unchecked
    assert dict(verification.checks)["operators run as their sharding says"] > 10


def test_a_plan_with_stages_fits_together_also_after_a_file(priced_plan: Plan) -> None:
    assert Plan.from_json(priced_plan.to_json()).verify() == priced_plan.verify()
    assert "ok: stages run all layers, in order (2)" in str(priced_plan.verify())


@settings(max_examples=settings().max_examples // 5)
@given(st.integers(0, 2**32))
def test_random_plans_that_run_fit_together(seed: int) -> None:
    meshes = [Mesh((2,), ("x",), (0, 1)), Mesh((2, 2), ("x", "y"), (2, 3, 4, 5))]
    plan = random_plan(layered("mlp"), meshes, random.Random(seed))
    verification = plan.verify()
    assert "not checked, as the plan keeps no shardings: " in str(verification)
    assert len(verification.unchecked) == 5


FIRST = Spec.parse("RS0")

WRONG: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "devices of two stages": (
        lambda p: with_stage(p, 1, mesh=Mesh((2,), ("x",), (1, 2))),
        "stages 0 and 1 share some of their devices but not all",
    ),
    "a layer that nobody runs": (
        lambda p: with_stage(p, 1, first_layer=3),
        "stage 1 runs layers 3 to 3 instead of some from 2 on",
    ),
    "layers run again, and no copies": (
        lambda p: with_stage(p, 1, first_layer=0),
        "stage 1 runs layers 0 to 3 instead of some from 2 on",
    ),
    "too much memory": (
        lambda p: replace(p, memory_limit_bytes=100),
        "of 100 B",
    ),
    "live values beyond the limit": (
        lambda p: replace(
            p,
            memory_limit_bytes=100,
            stages=tuple(replace(s, memory_bytes=1) for s in p.stages),
        ),
        "live values take",
    ),
    "a transfer left out": (
        lambda p: replace(p, transfers=p.transfers[1:]),
        "which no stage sends to it",
    ),
    "a transfer twice": (
        lambda p: replace(p, transfers=(*p.transfers, p.transfers[0])),
        "is sent to stage [01] 2 times",
    ),
    "a transfer in another layout": (
        lambda p: replace(p, transfers=(replace(p.transfers[0], src_spec=FIRST), *p.transfers[1:])),
        "is sent as RS0, which the stage does not have",
    ),
    "a transfer that arrives in another layout": (
        lambda p: replace(p, transfers=(replace(p.transfers[0], dst_spec=FIRST), *p.transfers[1:])),
        "arrives as RS0, which the stage does not read",
    ),
    "a transfer to nowhere": (
        lambda p: replace(p, transfers=(replace(p.transfers[0], destination=7),)),
        "is sent between stages that do not exist",
    ),
    "a transfer of a value that the stage does not have": (
        lambda p: replace(p, transfers=(replace(p.transfers[0], value="other"), *p.transfers[1:])),
        "stages read what they are sent; stage 1 does not read other",
    ),
    "a transfer of other bytes": (
        lambda p: replace(p, transfers=(replace(p.transfers[0], n_bytes=1), *p.transfers[1:])),
        "bytes, and 1 are sent",
    ),
    "a step that takes another time": (
        lambda p: replace(p, step_s=p.step_s * 2),
        "and its parts take",
    ),
    "a step faster than possible": (
        lambda p: replace(p, lower_bound_s=p.step_s * 2),
        "less than the bound",
    ),
    "no such schedule": (
        lambda p: replace(p, schedule="zigzag"),
        "schedule zigzag cannot be simulated",
    ),
    "an operator on another stage": (
        lambda p: with_stage(
            p, 0, placements=(*p.stages[0].placements[1:], p.stages[0].placements[0])
        ),
        "stage 0: its operators are not those of its sharding",
    ),
    "another number of microbatches": (
        lambda p: replace(p, microbatches=4),
        "its program has 2 microbatches, not 4",
    ),
}

INSIDE: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "a value in a layout that nothing makes": (
        lambda p: with_stage(
            p, 0, inputs=tuple(replace(s, spec=Spec.parse("S0R")) for s in p.stages[0].inputs)
        ),
        "which nothing makes",
    ),
    "a conversion left out": (
        lambda p: with_stage(p, 0, conversions=()),
        "which nothing makes",
    ),
    "a collective left out": (
        lambda p: with_stage(p, 0, collectives=p.stages[0].collectives[1:]),
        "its collectives are not those of its operators and conversions",
    ),
    "a collective more": (
        lambda p: with_stage(
            p,
            0,
            collectives=(
                *p.stages[0].collectives,
                Collective(0, "x", "all_reduce", (0,), 2, 4, 4, 1, 0.0),
            ),
        ),
        "all_reduce",
    ),
    "a conversion that cannot be": (
        lambda p: with_stage(
            p,
            0,
            conversions=(
                *p.stages[0].conversions,
                replace(p.stages[0].conversions[0], src=Spec.parse("S7RR")),
            ),
        ),
        "cannot go from S7RR to",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_found_and_named(wrong: str, priced_plan: Plan) -> None:
    change, message = WRONG[wrong]
    with pytest.raises(VerificationError, match=message) as caught:
        change(priced_plan).verify()
    assert str(caught.value).startswith("the parts of a plan fit together; this one's do not: ")


@pytest.mark.parametrize("wrong", INSIDE)
def test_what_is_wrong_inside_a_stage_is_found_and_named(wrong: str) -> None:
    change, message = INSIDE[wrong]
    plan = Planner(layered("mlp"), ONE_HOST, PlanOptions(strategy="zero")).best()
    assert plan.stages[0].collectives
    with pytest.raises(VerificationError, match=f"stage 0: .*{message}"):
        change(plan).verify()
