"""Choose what backward computes again, if memory is short."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Protocol

from frontends.answer.plan import Plan
from frontends.errors import NoPlanError
from frontends.plan.plan_fields import REMATS, Alternative, Remat

_LESS = 0.95
"""What is computed again is worth a search if forward then hands less than this part of the bytes
to backward [chosen]; a program that has its own checkpoints leaves little to save."""


class PlansOfRemat(Protocol):
    """Plans of a step by what backward computes again."""

    def fastest(self, remat: Remat) -> Plan:
        """The fastest plan; raises `NoPlanError` if none fits."""

    def saved_bytes(self, remat: Remat) -> int:
        """What backward reads of forward's results, without sharding."""

    def was_short(self, remat: Remat) -> bool:
        """Whether anything did not fit the memory when the fastest plan was searched."""

    def bound_s(self, remat: Remat) -> float:
        """Lower bound of the time of a step, quick."""

    def in_other_schedules(self, plan: Plan) -> Plan:
        """The same, or a faster plan that computes as much again, in another schedule."""


def with_remat(plans: PlansOfRemat, wanted: Remat | None) -> Plan:
    """The fastest plan over what may be computed again, with the others as alternatives.

    Recomputing only costs time, so more of it is tried only while memory keeps the search from
    something, and not where its work alone takes as long as the fastest plan so far.

    Args:
        plans: The plans to choose from.
        wanted: What the user wants; None if it is to be chosen.

    Raises:
        NoPlanError: No choice has a plan that fits.
    """
    if wanted is not None:
        return plans.in_other_schedules(plans.fastest(wanted))
    found: dict[Remat, Plan | NoPlanError] = {}
    least = fastest_s = math.inf
    for remat in REMATS:
        saved = plans.saved_bytes(remat)
        if found and saved >= _LESS * least:
            continue
        least = saved
        if fastest_s < math.inf and plans.bound_s(remat) >= fastest_s:
            break  # what computes more again takes longer still
        try:
            plan = found[remat] = plans.fastest(remat)
            fastest_s = min(fastest_s, plan.step_s)
        except NoPlanError as error:
            found[remat] = error
        if not plans.was_short(remat):
            break
    fitting = {remat: plan for remat, plan in found.items() if isinstance(plan, Plan)}
    if not fitting:
        raise next(error for error in found.values() if isinstance(error, NoPlanError))
    chosen = min(fitting, key=lambda remat: fitting[remat].step_s)
    best = plans.in_other_schedules(fitting[chosen])
    others = [_not_taken(remat, plan, best) for remat, plan in found.items() if remat != chosen]
    return replace(best, alternatives=(*best.alternatives, *others))


def _not_taken(remat: Remat, other: Plan | NoPlanError, best: Plan) -> Alternative:
    """A plan that computes something else again, and why it was not chosen."""
    if not isinstance(other, Plan):
        return Alternative(f"remat={remat}", None, None, "no plan fits the memory")
    ratio = other.step_s / best.step_s if best.step_s else 1.0
    reason = f"{ratio:.2f} times as long a step, by {other.strategy}"
    return Alternative(f"remat={remat}", other.step_s, other.memory_bytes, reason)
