"""How many microbatches: the number that makes the step shortest.

A search of stages costs many times what a plan with given stages does. So numbers are compared by
plans that need no search, and the number of the fastest of them is searched. What that finds is
tried in the numbers next to it, and one stage for all in the fewer ones, as without a pipeline
more microbatches only save memory: a number in which those are faster is searched as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from frontends.answer.plan import Plan
from frontends.errors import NoPlanError
from frontends.plan.plan_fields import Alternative
from frontends.search.candidates import EQUAL_LAYERS

_GAIN = 0.99
"""Of a step's time, below which another number of microbatches is worth a search [chosen]."""


class PlansOfNumber(Protocol):
    """Plans of a step in one number of microbatches; see `frontends.search.planner.Planner`."""

    def usual(self) -> Plan:
        """The fastest that needs no search."""

    def best(self) -> Plan:
        """The fastest, searched."""

    def like(self, other: Plan) -> Plan | None:
        """The one with the stages of a plan in another number of microbatches."""

    def in_one_stage(self) -> Plan | None:
        """The fastest without a pipeline."""

    def one_stage_bound_s(self) -> float:
        """A time that it does not beat."""


def with_microbatches(
    of: Callable[[int], PlansOfNumber], fewest: int, sizes: Sequence[int]
) -> Plan:
    """The fastest plan over numbers of microbatches, with the others as alternatives.

    More of them make a pipeline's bubble smaller and need less memory; they never help a plan
    without a pipeline, where pipelines fit and are slower.

    Args:
        of: The plans in so many microbatches.
        fewest: The number to begin with.
        sizes: Examples in each leaf of the batch.

    Raises:
        NoPlanError: Nothing fits the memory in any number.
    """
    numbers = list(_doubled(fewest, sizes))
    looked = _climb(lambda n: of(n).usual(), numbers, until_room=True)
    found: dict[int, Plan] = {}
    if looked:
        n = min(looked, key=lambda n: looked[n].step_s)
        with suppress(NoPlanError):  # of a search alone, which may fit less
            found[n] = of(n).best()
    if not found:
        found = _climb(lambda n: of(n).best(), numbers, until_room=False)
    if not found:
        of(numbers[-1]).best()  # raises the reason
    while True:
        n = min(found, key=lambda n: found[n].step_s)
        other = _faster(of, found[n], n, numbers) or _alone(of, found[n], n, numbers)
        if other is None:
            break
        found[other] = of(other).best()
    return _with_others(found[n], [*found.values(), *looked.values()])


def _doubled(fewest: int, sizes: Sequence[int]) -> Iterator[int]:
    """Numbers that cut every leaf of the batch evenly."""
    yield fewest
    while sizes and fewest > 0 and math.gcd(2 * fewest, *sizes) == 2 * fewest:
        fewest *= 2
        yield fewest


def _climb(
    plan_of: Callable[[int], Plan], numbers: Sequence[int], *, until_room: bool
) -> dict[int, Plan]:
    """Plans in more and more microbatches, until they gain nothing.

    Args:
        plan_of: Of a number.
        numbers: From few to many.
        until_room: Whether to go on at least until a pipeline of equal layers fits, after which
            steps may get shorter by far.
    """
    found: dict[int, Plan] = {}
    before_s = math.inf
    for n in numbers:
        try:
            plan = found[n] = plan_of(n)
        except NoPlanError:
            if found and not until_room:
                break
            continue
        has_room = not any(a.name == EQUAL_LAYERS and a.step_s is None for a in plan.alternatives)
        gains = plan.step_s <= _GAIN * before_s
        before_s = plan.step_s
        if has_room and (len(plan.stages) == 1 or not gains):
            break
        if not (gains or until_room):
            break
    return found


def _faster(
    of: Callable[[int], PlansOfNumber], plan: Plan, n: int, numbers: Sequence[int]
) -> int | None:
    """The number in which the stages of a plan in `n` microbatches are fastest, if not `n`."""
    place = numbers.index(n)
    fewer = numbers[:place][::-1]
    more = numbers[place + 1 :] if len(plan.stages) > 1 else ()
    for others in (more, fewer):
        fastest, its_s = n, plan.step_s
        for other in others:
            alike = of(other).like(plan)
            if alike is None or alike.step_s > _GAIN * its_s:
                break
            fastest, its_s = other, alike.step_s
        if fastest != n:
            return fastest
    return None


def _alone(
    of: Callable[[int], PlansOfNumber], plan: Plan, n: int, numbers: Sequence[int]
) -> int | None:
    """The number below `n` in which a plan without a pipeline is faster; the fewest that fit."""
    limit_s = _GAIN * plan.step_s
    for other in numbers[: numbers.index(n)]:
        if of(other).one_stage_bound_s() > limit_s:  # and more microbatches take longer
            return None
        alone = of(other).in_one_stage()
        if alone is not None:
            return other if alone.step_s <= limit_s else None
    return None


def _with_others(best: Plan, plans: Sequence[Plan]) -> Plan:
    """With the fastest plan in each other number of microbatches as an alternative."""
    fastest: dict[int, Plan] = {}
    for plan in sorted(plans, key=lambda plan: plan.step_s):
        fastest.setdefault(plan.microbatches, plan)
    others = tuple(
        Alternative(
            f"{n} microbatches",
            other.step_s,
            other.memory_bytes,
            f"{other.step_s / best.step_s:.2f} times as long a step, by {other.strategy}"
            if best.step_s
            else "as fast",
        )
        for n, other in sorted(fastest.items())
        if n != best.microbatches
    )
    return replace(best, alternatives=best.alternatives + others)
