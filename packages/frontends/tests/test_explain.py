"""A plan says why each name has its layouts and its stage, also after a file."""

from dataclasses import replace

import autoshard
import pytest
from frontends.answer.plan import Plan
from frontends.errors import PlanError
from frontends.plan.plan_fields import Stage
from frontends.price.priced_stage import as_planned


def operators_of(stage: Stage) -> list[str]:
    assert stage.sharding is not None
    return [operator.name for operator in stage.sharding.graph.operators]


def test_every_stored_value_is_explained_with_its_own_layout(priced_plan: Plan) -> None:
    for index, stage in enumerate(priced_plan.stages):
        for stored in stage.inputs:
            explanation = priced_plan.explain(stored.value)
            (here,) = (part for part in explanation.stages if part.stage == index)
            assert here.layouts.taken.how == stored.spec


def test_operators_are_explained_with_their_placement(priced_plan: Plan) -> None:
    for index, stage in enumerate(priced_plan.stages):
        for placement in stage.placements[::7]:
            here = priced_plan.explain(placement.operator).stages[0]  # others read its result
            how = here.layouts.taken.how
            assert here.stage == index
            assert isinstance(how, autoshard.Strategy)
            assert (how.operand_specs, how.result_specs) == (placement.operands, placement.results)


def test_the_runner_up_is_priced(priced_plan: Plan) -> None:
    name = next(s.value for s in priced_plan.stages[0].inputs if s.value.startswith("params"))
    explanation = priced_plan.explain(name)
    assert explanation.stages[0].layouts.others
    text = str(explanation)
    assert f"{name} on stage 0: layers 0-1, mesh" in text
    assert "The next best, " in text
    assert "a parameter is kept where forward reads it first" in text


def test_a_plan_from_a_file_explains_as_before(priced_plan: Plan) -> None:
    loaded = Plan.from_json(priced_plan.to_json())
    for name in (operators_of(priced_plan.stages[0])[0], priced_plan.stages[1].inputs[0].value):
        assert str(loaded.explain(name)) == str(priced_plan.explain(name))


def test_what_is_sent_names_the_stage_that_gets_it(priced_plan: Plan) -> None:
    transfer = next(t for t in priced_plan.transfers if t.phase == "forward")
    explanation = priced_plan.explain(transfer.value)
    assert [part.stage for part in explanation.stages] == [transfer.source, transfer.destination]
    assert f"sent to stage {transfer.destination} as {transfer.dst_spec}" in str(explanation)
    assert f"stage {transfer.source} has it" in explanation.stages[1].why_here


def test_the_next_best_plan_is_named(priced_plan: Plan, example_plan: Plan) -> None:
    name = operators_of(priced_plan.stages[0])[0]
    assert str(priced_plan.explain(name)).endswith("no other plan that was priced can run.")
    plan = replace(priced_plan, alternatives=example_plan.alternatives)
    assert "the next best plan, data_parallel, would take 655 ms" in str(plan.explain(name))


def test_rejects_unknown_names_with_a_hint(priced_plan: Plan) -> None:
    name = operators_of(priced_plan.stages[0])[0]
    with pytest.raises(PlanError, match=rf"plan is called '{name}x'; did you mean '{name}'\?"):
        priced_plan.explain(f"{name}x")
    with pytest.raises(PlanError, match=r"is called '~~~'; str\(plan\) names its arguments"):
        priced_plan.explain("~~~")


def test_a_plan_without_shardings_says_what_to_do(example_plan: Plan) -> None:
    with pytest.raises(PlanError, match=r"format 1 or was not searched: plan again"):
        example_plan.explain("add.40")


def test_what_is_kept_holds_no_times_of_the_search(priced_plan: Plan) -> None:
    for stage in priced_plan.stages:
        assert stage.sharding is not None
        kept = as_planned(stage.sharding, stage.mesh, stage.sharding.options.in_flight)
        assert kept == stage.sharding
        assert kept.solution.seconds == 0.0
        assert kept.mesh == stage.mesh
