"""All processes of a run do the same plan: process 0 makes it, and each knows it by a digest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from frontends.answer.plan import Plan
from frontends.errors import PlanError
from frontends.search.plan_options import PlanOptions
from frontends.search.plan_step import Planned, TracedT


def plan_together(
    plan_for: Callable[[PlanOptions], Planned[TracedT]],
    options: PlanOptions,
    process: int | None,
    share: Callable[[str | None], str],
) -> Planned[TracedT]:
    """Let process 0 search a plan for all: searches that are stopped by time differ.

    Args:
        plan_for: Plans with some options; with the option `plan`, takes that plan.
        options: Of the user.
        process: The number of this one; None if it is alone.
        share: All processes call it, process 0 with a text, the others with None; what all get is
            that text.

    Raises:
        PlanError: Process 0 found none.
        FrontendsError: Of another kind, as `plan_for` raises them.
    """
    if process is None or options.plan is not None:
        return plan_for(options)
    if process > 0:
        found = share(None)
        if not found.startswith("{"):
            raise PlanError(f"process 0 makes the plan of all processes, and failed: {found}")
        return plan_for(options.with_plan(Plan.from_json(found)))
    try:
        planned = plan_for(options)
    except BaseException as error:  # the others wait for what became of it
        share(f"{type(error).__name__}: {error}")
        raise
    share(planned.plan.to_json())
    return planned


def digest_of(plan: Plan) -> str:
    """What tells plans apart, short enough to send around."""
    return hashlib.sha256(plan.to_json().encode()).hexdigest()


def check_one_plan(digests: Sequence[str]) -> None:
    """The digest of each process's plan is the same.

    Raises:
        PlanError: Some process has another plan than process 0.
    """
    others = [process for process, other in enumerate(digests) if other != digests[0]]
    if others:
        raise PlanError(
            "all processes run the same plan; process 0 and process "
            f"{', '.join(map(str, others))} have different ones: call the step with equal shapes "
            "and options everywhere"
        )
