"""What two plans do differently is found, and nothing else."""

import re
from dataclasses import fields, replace

import pytest
from frontends.answer.plan import Plan
from frontends.report.diff import KINDS, diff
from frontends.report.text import WIDTH
from frontends.testing import plans
from hypothesis import given, settings
from hypothesis import strategies as st
from shardspec import Mesh, Spec


@settings(max_examples=settings().max_examples // 2)
@given(plans())
def test_equal_plans_have_no_difference(plan: Plan) -> None:
    difference = plan.diff(Plan.from_json(plan.to_json()))
    assert not difference
    assert difference.changes == ()
    assert str(difference) == "Nothing is different"


@settings(max_examples=settings().max_examples // 5)
@given(plans(), plans())
def test_a_difference_backwards_is_the_same_with_its_ends_swapped(one: Plan, other: Plan) -> None:
    there, back = diff(one, other).changes, diff(other, one).changes
    assert {(c.kind, c.what, c.before, c.after) for c in there} == {
        (c.kind, c.what, c.after, c.before) for c in back
    }


@settings(max_examples=settings().max_examples // 5)
@given(plans(), plans())
def test_prints_any_difference(one: Plan, other: Plan) -> None:
    text = str(diff(one, other))
    assert max(map(len, text.splitlines())) <= WIDTH


@settings(max_examples=settings().max_examples // 2)
@given(plans(), st.sampled_from([f.name for f in fields(Plan) if f.type in ("str", "int")]))
def test_every_field_of_a_plan_is_compared(plan: Plan, name: str) -> None:
    value = getattr(plan, name)
    changed = replace(plan, **{name: value + 2**40 if isinstance(value, int) else value + "x"})
    assert diff(plan, changed)


def test_a_value_stored_otherwise_is_found(example_plan: Plan) -> None:
    first, second = example_plan.stages
    stored = replace(first.inputs[0], spec=Spec.parse("RR"))
    other = replace(
        example_plan, stages=(replace(first, inputs=(stored, *first.inputs[1:])), second)
    )
    (change,) = example_plan.diff(other).changes
    assert (change.kind, change.what) == ("stored value", stored.value)
    assert (change.before, change.after) == ("RS1 on stage 0", "RR on stage 0")


def test_an_operator_on_another_stage_is_found(example_plan: Plan) -> None:
    first, second = example_plan.stages
    moved = replace(second, placements=(*second.placements, *first.placements))
    other = replace(example_plan, stages=(replace(first, placements=()), moved))
    changes = example_plan.diff(other).changes
    assert [c.what for c in changes if c.kind == "operator"] == ["add.40"]
    assert changes[0].after.endswith("on stage 1")


CHANGES = {
    "plan": lambda p: replace(p, strategy="zero"),
    "stage": lambda p: replace(
        p, stages=(p.stages[0], replace(p.stages[1], mesh=Mesh((4,), ("x",), (8, 9, 10, 11))))
    ),
    "conversion": lambda p: replace(p, stages=(replace(p.stages[0], conversions=()), p.stages[1])),
    "collectives": lambda p: replace(
        p, stages=(replace(p.stages[0], collectives=p.stages[0].collectives[1:]), p.stages[1])
    ),
    "transfer": lambda p: replace(p, transfers=p.transfers[1:]),
    "priced plan": lambda p: replace(p, alternatives=p.alternatives[1:]),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_each_kind_of_change_is_found(kind: str, example_plan: Plan) -> None:
    difference = example_plan.diff(CHANGES[kind](example_plan))
    assert {change.kind for change in difference.changes} == {kind}
    assert str(difference).count(f"{kind.capitalize()}: ") == 1
    assert set(CHANGES) < set(KINDS)


def test_changes_from_the_same_to_the_same_take_one_row(example_plan: Plan) -> None:
    first, second = example_plan.stages
    whole = tuple(replace(s, spec=Spec.replicated(s.spec.ndim)) for s in first.inputs)
    text = str(
        example_plan.diff(replace(example_plan, stages=(replace(first, inputs=whole), second)))
    )
    assert re.search(r"opt_state.* and 5 more +S01R on stage 0 +RR on stage 0", text)


def test_says_what_the_change_costs(example_plan: Plan) -> None:
    slower = replace(example_plan, step_s=2 * example_plan.step_s)
    assert example_plan.diff(slower).seconds == example_plan.step_s
    assert "A step takes 231 ms more, 2.000 times: 231 ms to 462 ms" in str(
        example_plan.diff(slower)
    )
    assert "231 ms less, 0.500 times" in str(slower.diff(example_plan))
