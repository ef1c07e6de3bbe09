"""Choose whether microbatches are padded, if devices do not divide their examples evenly."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from frontends.answer.plan import Plan
from frontends.errors import NoPlanError
from frontends.plan.plan_fields import REMATS, Alternative, Remat
from frontends.search.remat import PlansOfRemat, with_remat
from frontends.step.padding import padded_size

SizesOf = Callable[[int], int]
"""Returns to how many examples each of some number of microbatches is padded; 0 for none."""


def unpadded(microbatches: int) -> int:
    """No padding, in any number of microbatches."""
    return 0


@dataclass(frozen=True)
class PaddedSizes:
    """To how many examples microbatches are padded, so that devices divide them."""

    sizes: tuple[int, ...]
    """Number of examples in each leaf of the batch."""

    n_devices: int

    def __call__(self, microbatches: int) -> int:
        """The number of examples that each of some microbatches is padded to; 0 for none."""
        examples = math.gcd(*self.sizes) // microbatches if self.sizes else 0
        size = padded_size(examples, self.n_devices) if examples else 0
        return size if size != examples else 0

    def differ(self, first: int, is_only: bool) -> bool:
        """Whether there is any padding.

        Args:
            first: The number of microbatches to begin with.
            is_only: Whether it is the only one.
        """
        numbers = [first]
        if not is_only:
            most = math.gcd(*self.sizes) if self.sizes else 1
            numbers = [n for n in range(1, most + 1) if most % n == 0]
        return any(self(n) for n in numbers)


def with_padding(ways: Mapping[bool, PlansOfRemat], wanted: Remat | None) -> Plan:
    """The fastest plan over whether microbatches are padded, with the other as an alternative.

    Plans without padding are searched first. Those with padding are searched if one is faster that
    needs no search (a baseline, or one with the stages of the plan found), or if none is known.

    Args:
        ways: The plans without padding, and those with padding if any number of microbatches has
            some.
        wanted: What is computed again, if the user has chosen it.

    Raises:
        NoPlanError: Nothing fits, with padding or without.
    """
    if True not in ways:
        return with_remat(ways[False], wanted)
    try:
        plain = with_remat(ways[False], wanted)
    except NoPlanError:
        with suppress(NoPlanError):
            return with_remat(ways[True], wanted)
        raise
    padded = _padded(ways[True], wanted, plain)
    if padded is None:
        return plain
    best, other = sorted((plain, padded), key=lambda plan: plan.step_s)
    return replace(best, alternatives=(*best.alternatives, _slower(other, best)))


def _padded(plans: PlansOfRemat, wanted: Remat | None, plain: Plan) -> Plan | None:
    """The fastest plan with padding, or a quick one if none of these is faster than one without."""
    quick: list[Plan] = []
    choices = REMATS if wanted is None else (wanted,)
    may_be_faster = [remat for remat in choices if plans.bound_s(remat) < plain.step_s]
    for remat in may_be_faster:
        usual = plans.usual(remat)
        if usual is not None:
            quick.append(plans.alike(remat, plain, usual))
            if quick[-1].step_s < plain.step_s:
                break
    fastest = min(quick, key=lambda plan: plan.step_s, default=None)
    if may_be_faster and (fastest is None or fastest.step_s < plain.step_s):
        with suppress(NoPlanError):
            return with_remat(plans, wanted)
    return fastest


def _slower(other: Plan, best: Plan) -> Alternative:
    name = f"padded to {other.padded_to}" if other.padded_to else "without padding"
    reason = f"{other.step_s / best.step_s:.2f} times as long a step, by {other.strategy}"
    return Alternative(name, other.step_s, other.memory_bytes, reason)
