"""Plan a step in two passes, if its loss compares examples; or in one, if that is faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from frontends.answer.plan import Plan
from frontends.errors import AccumulationError, HeldLayoutError, NoPlanError
from frontends.search.plan_options import PlanOptions
from frontends.search.plan_step import Planned, TracedStep

TracedT = TypeVar("TracedT", bound=TracedStep)


def in_two_passes(
    planned: Planned[TracedT],
    first_pass: Callable[[Plan], Planned[TracedT]],
    in_one: Callable[[PlanOptions], Planned[TracedT]],
    options: PlanOptions,
    hold: Plan | None,
) -> Planned[TracedT]:
    """The plan of a step together with that of its first pass; see `frontends.step.two_passes`.

    Args:
        planned: The plan of the second pass.
        first_pass: Plans the first pass with the stages of a plan, where that keeps its state.
        in_one: Plans the step with other options.
        options: How the step is planned.
        hold: The plan in whose layouts its state is held, if any.

    Raises:
        AccumulationError: The first pass cannot run with the stages of the step.
        HeldLayoutError: The same, with `hold`.
    """
    is_free = options.plan is None and hold is None and options.microbatches is None
    two: Planned[TracedT] | None = None
    try:
        first = first_pass(planned.plan)
        plan = planned.plan
        if options.plan is None:
            step_s = plan.step_s - plan.first_pass_s + first.plan.step_s
            plan = replace(plan, step_s=step_s, first_pass_s=first.plan.step_s)
        two = replace(planned, plan=plan, first_pass=first)
    except HeldLayoutError as error:
        if hold is not None:
            raise
        if not is_free:
            raise AccumulationError(
                "the loss compares examples, so a first pass computes their features with the "
                f"stages of the step; here it cannot: {error}. Use microbatches=1, or stages=1"
            ) from error
    if two is not None and not is_free:
        return two
    try:
        one = in_one(replace(options, microbatches=1))
    except NoPlanError:
        if two is None:
            raise
        return two
    if two is not None and two.plan.step_s < one.plan.step_s:
        return two
    return replace(one, plan=replace(one.plan, options=planned.plan.options))
