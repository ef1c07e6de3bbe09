"""Make sure that all processes run the same plan: process 0 makes it, digests are compared."""

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
    """Let process 0 search a plan for all processes, as searches with a time limit may differ.

    Args:
        plan_for: Plans with some options; with the option `plan`, returns that plan.
        options: The options of the user.
        process: The number of this process; None if it is the only one.
        share: A broadcast that all processes call: process 0 with a text, the others with None. It
            returns the text to all.

    Raises:
        PlanError: Planning failed in process 0.
        FrontendsError: Other errors that `plan_for` raises.
    """
    if process is None or options.plan is not None:
        return plan_for(options)
    if process > 0:
        text = share(None)
        if not text.startswith("{"):
            raise PlanError(f"process 0 makes the plan of all processes, and failed: {text}")
        return plan_for(options.with_plan(Plan.from_json(text)))
    try:
        planned = plan_for(options)
    except BaseException as error:  # the others wait for a plan or a reason
        share(f"{type(error).__name__}: {error}")
        raise
    share(planned.plan.to_json())
    return planned


def digest_of(plan: Plan) -> str:
    """A digest of a plan, by which processes compare their plans."""
    return hashlib.sha256(plan.to_json().encode()).hexdigest()


def check_one_plan(digests: Sequence[str]) -> None:
    """Check that all processes have the same plan.

    Args:
        digests: By process, the digest of its plan.

    Raises:
        PlanError: A process has another plan than process 0.
    """
    others = [process for process, other in enumerate(digests) if other != digests[0]]
    if others:
        raise PlanError(
            "all processes run the same plan; process 0 and process "
            f"{', '.join(map(str, others))} have different ones: call the step with equal shapes "
            "and options everywhere"
        )
