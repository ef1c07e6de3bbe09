"""Whatever stands in a plan's file is refused as damage, or is a plan that can be looked at."""

import contextlib
import json
from typing import Any

import pytest
from frontends.answer.plan import Plan
from frontends.errors import PlanError, VerificationError
from frontends.plan.schema import wrong_fields
from frontends.testing import plans
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

JUNK = (None, "x", "", -1, 0, 7, 10**30, 0.5, 1e308, float("nan"), True, [], [0], {}, "\x00]")


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all parts of some JSON."""
    found = [path] if path else []
    parts = enumerate(value) if isinstance(value, list) else ()
    for key, part in value.items() if isinstance(value, dict) else parts:
        found += places(part, (*path, key))
    return found


def replaced(data: Any, path: tuple[Any, ...], part: Any) -> str:
    """The JSON with one part replaced."""
    data = json.loads(json.dumps(data))
    *above, last = path
    inner = data
    for key in above:
        inner = inner[key]
    inner[last] = part
    return json.dumps(data)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_junk_is_refused_or_can_be_looked_at(example_plan: Plan, data: st.DataObject) -> None:
    source = json.loads(example_plan.to_json())
    path = data.draw(st.sampled_from(places(source)))
    try:
        plan = Plan.from_json(replaced(source, path, data.draw(st.sampled_from(JUNK))))
    except PlanError:
        return
    assert str(plan)
    assert repr(plan)
    assert plan.html()
    assert not plan.diff(plan)
    with contextlib.suppress(VerificationError):
        plan.verify()


@settings(max_examples=settings().max_examples // 4)
@given(plans())
def test_nothing_is_wrong_with_a_plan(plan: Plan) -> None:
    assert list(wrong_fields(plan)) == []


@pytest.mark.parametrize(
    ("path", "part", "message"),
    [
        (("microbatches",), 0, "microbatches is 0, and a step has one at least"),
        (("stages",), [], "stages is empty, and a plan has one at least"),
        (("step_s",), None, "step_s is None, and should be a finite number from 0 on"),
        (("cluster",), 3, "cluster is 3, and should be text"),
        (("stages", 1, "memory_bytes"), 0.5, r"\[1\]\.memory_bytes is 0\.5, and should be a"),
        (("memory_limits",), [1, 2], r"memory_limit_bytes is \d+, and the largest of .* is 2"),
        (("stages", 0, "collectives", 0, "axes"), [2], r"axes is \(2,\), and the .* mesh has 2"),
        (("stages", 0, "placements", 0, "phase"), 3, r"placements\[0\]\.phase is 3, which is none"),
        (("transfers", 0, "phase"), "late", "'late', and should be one of state, forward"),
        (("transfers", 0, "destination"), 2, r"from stage 0 to 2, and there are 2"),
        (("alternatives", 0, "step_s"), "long", r"alternatives\[0\]\.step_s is 'long', and should"),
    ],
)  # fmt: skip
def test_damage_is_named(
    path: tuple[Any, ...], part: Any, message: str, example_plan: Plan
) -> None:
    text = replaced(json.loads(example_plan.to_json()), path, part)
    with pytest.raises(PlanError, match=f"the plan is damaged: .*{message}"):
        Plan.from_json(text)
