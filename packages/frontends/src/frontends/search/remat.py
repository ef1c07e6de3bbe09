"""Choose what backward computes again, if memory is short."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from frontends.answer.plan import Plan
from frontends.errors import NoPlanError
from frontends.plan.plan_fields import REMATS, Alternative, Remat

_LESS = 0.95
"""What is computed again is worth a search if forward then hands less than this part of the bytes
to backward [chosen]; a program that has its own checkpoints leaves little to save."""

_CLOSE = 0.9
"""If the work of a choice alone takes this part of the time of the fastest baseline so far, stages
are searched for this one first [chosen]: they may be faster than the choice can be."""


class PlansOfRemat(Protocol):
    """Plans of a step by what backward computes again."""

    def fastest(self, remat: Remat, promising: Plan | None = None) -> Plan:
        """The fastest plan; raises `NoPlanError` if none fits.

        Args:
            remat: What is computed again.
            promising: A plan that is faster than the baselines, to begin with.
        """

    def usual(self, remat: Remat) -> Plan | None:
        """The fastest baseline; None if none fits, in any number of microbatches."""

    def alike(self, remat: Remat, plan: Plan, usual: Plan) -> Plan:
        """The fastest plan that needs no search: a baseline, or with the stages of a plan."""

    def saved_bytes(self, remat: Remat) -> int:
        """What backward reads of forward's results, without sharding."""

    def was_short(self, remat: Remat) -> bool:
        """Whether anything did not fit the memory when the fastest plan was searched."""

    def bound_s(self, remat: Remat) -> float:
        """Lower bound of the time of a step, quick."""

    def by_layer(self, plan: Plan) -> Plan | None:
        """A faster plan in which some layers compute less again, if any."""

    def in_other_schedules(self, plan: Plan) -> Plan:
        """The same, or a faster plan that computes as much again, in another schedule."""


def with_remat(plans: PlansOfRemat, wanted: Remat | None) -> Plan:
    """The fastest plan over what may be computed again, with the others as alternatives.

    Recomputing only costs time, so more of it is tried only while memory keeps the search from
    something, and not where its work alone takes as long as the fastest plan so far. As searching
    stages takes long, choices are compared by baselines, and the one with the fastest is searched.
    Of the others, those are searched, too, that are faster with the stages of its plan. One in
    which memory lets no baseline fit is searched only if nothing else has a plan. Pipelines in
    other schedules are searched with all that computes more again, as long as memory keeps the
    search from some. At last, layers of the plans that were found may compute less again than
    others (`remat_by_layer`).

    Args:
        plans: The plans to choose from.
        wanted: What the user wants; None if it is to be chosen.

    Raises:
        NoPlanError: No choice has a plan that fits.
    """
    if wanted is not None:
        return plans.in_other_schedules(plans.fastest(wanted))
    usual: dict[Remat, Plan] = {}
    found: dict[Remat, Plan] = {}
    missing: dict[Remat, str] = {}
    errors: list[NoPlanError] = []

    def cannot_be_faster(remat: Remat, than: Iterable[Plan]) -> bool:
        fastest_s = min((plan.step_s for plan in than), default=math.inf)
        return fastest_s < math.inf and plans.bound_s(remat) >= fastest_s

    def search(remat: Remat, promising: Plan | None = None) -> None:
        try:
            found[remat] = plans.fastest(remat, promising)
        except NoPlanError as error:
            errors.append(error)
            missing[remat] = "no plan fits the memory"

    def search_usual() -> None:
        """Search the choice with the fastest baseline, then those that are still faster."""
        waiting = [remat for remat in usual if remat not in found]
        for remat in sorted(waiting, key=lambda remat: usual[remat].step_s):
            if not found:
                search(remat)
            elif not cannot_be_faster(remat, found.values()):
                best = min(found.values(), key=lambda plan: plan.step_s)
                quick = usual[remat] = plans.alike(remat, best, usual[remat])
                if quick.step_s < best.step_s:
                    search(remat, quick)
                    if remat in found and found[remat].step_s > quick.step_s:
                        others = found[remat].alternatives
                        found[remat] = replace(quick, alternatives=others)

    least = math.inf
    for remat in REMATS:
        saved = plans.saved_bytes(remat)
        if saved >= _LESS * least:
            continue
        least = saved
        if usual and plans.bound_s(remat) >= _CLOSE * min(p.step_s for p in usual.values()):
            search_usual()
        if cannot_be_faster(remat, (*usual.values(), *found.values())):
            break  # what computes more again takes longer still
        plan = plans.usual(remat)
        if plan is not None:
            usual[remat] = plan
        if not plans.was_short(remat):  # baselines may not run for other reasons
            search(remat)
            if not plans.was_short(remat):
                break
        elif plan is None:
            missing[remat] = "not searched, as no baseline fits the memory"
    search_usual()
    if not found:
        for remat in [*missing]:
            if not cannot_be_faster(remat, found.values()):
                search(remat)
    if not found:
        raise errors[0]
    plain = min(found.values(), key=lambda plan: plan.step_s)
    best = plans.in_other_schedules(plain)
    last = plain.remat
    for remat in REMATS[REMATS.index(plain.remat) + 1 :]:
        # Schedules with a smaller bubble hold more; there may be room for them in another choice.
        least_s = plans.bound_s(plain.remat)
        ratio = plans.bound_s(remat) / least_s if least_s else 1.0
        if not plans.was_short(last) or ratio * _busiest_s(plain) >= best.step_s:
            break
        if plans.saved_bytes(remat) >= _LESS * plans.saved_bytes(last):
            continue
        if remat not in found and remat not in missing:
            search(remat)
        if remat in found:
            best = min(best, plans.in_other_schedules(found[remat]), key=lambda plan: plan.step_s)
        last = remat
    others = {remat: plan for remat, plan in (usual | found).items() if remat != best.remat}
    for plan in found.values():
        mixed = plans.by_layer(plan)
        if mixed is not None and mixed.step_s < best.step_s:
            if not best.remat_of_layers:
                others[best.remat] = best
            best = replace(mixed, alternatives=best.alternatives)
    alternatives = [
        *(_slower(remat, plan, best) for remat, plan in others.items()),
        *(
            Alternative(f"remat={remat}", None, None, reason)
            for remat, reason in missing.items()
            if remat not in found
        ),
    ]
    return replace(best, alternatives=(*best.alternatives, *alternatives))


def _busiest_s(plan: Plan) -> float:
    """The work of the busiest stage of a pipeline in a step; infinite without a pipeline."""
    if len(plan.stages) == 1:
        return math.inf
    return max(
        plan.microbatches * (stage.forward_s + stage.backward_s) + stage.apply_s
        for stage in plan.stages
    )


def _slower(remat: Remat, other: Plan, best: Plan) -> Alternative:
    """A plan that computes something else again, and why it was not chosen."""
    ratio = other.step_s / best.step_s if best.step_s else 1.0
    reason = f"{ratio:.2f} times as long a step, by {other.strategy}"
    return Alternative(f"remat={remat}", other.step_s, other.memory_bytes, reason)
