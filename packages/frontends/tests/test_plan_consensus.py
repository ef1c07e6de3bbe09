"""Process 0 plans for all; here the processes are calls, one after the other."""

from dataclasses import replace

import pytest
from frontends import Plan, PlanError, PlanOptions
from frontends.run.plan_consensus import check_one_plan, digest_of, plan_together
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
    check_one_plan([digest_of(taken.plan), digest_of(made.plan)])
    with pytest.raises(PlanError, match="process 0 and process 1 have different ones"):
        check_one_plan([digest_of(taken.plan), digest_of(replace(made.plan, microbatches=99))])


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
