"""Process 0 plans for all; here the processes are calls, one after the other."""

from dataclasses import replace

import pytest
from frontends import Plan, PlanError, PlanOptions
from frontends.run.plan_consensus import check_consensus, plan_together, word_of
from frontends.search.plan_step import Planned

TOLD: list[str] = []


def share(text: str | None) -> str:
    if text is not None:
        TOLD.append(text)
    return TOLD[-1]


def given(options: PlanOptions) -> Planned:
    """What takes a plan, and searches for none."""
    assert options.plan is not None
    return Planned(None, None, options.plan)


def test_all_take_the_plan_of_process_0(example_plan: Plan) -> None:
    made = plan_together(lambda _: Planned(None, None, example_plan), PlanOptions(), 0, share)
    taken = plan_together(given, PlanOptions(), 1, share)
    assert taken.plan == made.plan == example_plan

    def check(*said: tuple[Plan, dict[str, int]]) -> None:
        lines = {"mul.1": "train.py:7 in step"}
        check_consensus([word_of(*pair) for pair in said], ("add.0", "mul.1"), lines.get)

    program = {"add.0": 1, "mul.1": 2}
    check((taken.plan, program), (made.plan, program))
    with pytest.raises(PlanError, match="process 0 and process 1 have different ones"):
        check((taken.plan, program), (replace(made.plan, microbatches=99), program))
    with pytest.raises(PlanError, match=r"0 and process 1, 2 have .* numbers in mul\.1 \(t"):
        check(*((made.plan, {"add.0": 1, "mul.1": n}) for n in (2, 3, 4)))
    with pytest.raises(PlanError, match=r"numbers in add\.0: let the code read"):
        check(*((made.plan, {"add.0": n, "mul.1": n}) for n in (2, 3)))


@pytest.mark.parametrize("error", [PlanError("no such layer"), ZeroDivisionError("in the step")])
def test_whatever_fails_in_process_0_is_known_to_all(error: Exception) -> None:
    def fail(options: PlanOptions) -> Planned:
        raise error

    with pytest.raises(type(error), match=str(error)):
        plan_together(fail, PlanOptions(), 0, share)
    with pytest.raises(PlanError, match=rf"and failed: {type(error).__name__}: {error}$"):
        plan_together(given, PlanOptions(), 1, share)


def test_who_is_alone_or_has_a_plan_asks_nobody(example_plan: Plan) -> None:
    def nobody(_: str | None) -> str:
        raise AssertionError

    found = Planned(None, None, example_plan)
    assert plan_together(lambda _: found, PlanOptions(), None, nobody) is found
    assert plan_together(given, PlanOptions(plan=example_plan), 1, nobody).plan is example_plan
