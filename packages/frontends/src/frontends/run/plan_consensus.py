"""All processes of a run do the same plan: each knows it by a digest."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from frontends.answer.plan import Plan
from frontends.errors import PlanError


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
