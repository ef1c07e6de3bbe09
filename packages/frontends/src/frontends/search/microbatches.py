"""Choose the number of microbatches with which a step is shortest.

Searching stages takes many times longer than planning given stages. So numbers are compared by
baselines, which need no search, and stages are searched for the number of the fastest baseline. The
stages of that plan are then tried with neighbouring numbers, and a plan of one stage with smaller
ones (without a pipeline, more microbatches only save memory). If this is faster with a number,
stages are searched for that number, too. Numbers below the first one are for baselines that fit in
that one and not in the whole batch. Numbers that leave no room (`room`) are not looked at.
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
from frontends.search.candidates import BASELINES
from frontends.search.slicings import EQUAL_LAYERS

_GAIN = 0.99
"""Another number of microbatches is worth a search if a step takes less than this part of the
time [chosen]."""


class PlansOfNumber(Protocol):
    """Plans of a step in one number of microbatches; see `frontends.search.planner.Planner`."""

    def usual(self) -> Plan:
        """The fastest baseline; these need no search."""

    def best(self) -> Plan:
        """The fastest plan, which is searched."""

    def like(self, other: Plan) -> Plan | None:
        """The plan with the stages of a plan in another number of microbatches."""

    def in_one_stage(self) -> Plan | None:
        """The fastest plan without a pipeline."""

    def one_stage_bound_s(self) -> float:
        """Lower bound of the time of `in_one_stage`."""

    def in_other_schedules(self, limit_s: float, *, search: bool) -> Plan | None:
        """The fastest pipeline in schedules that `best` does not try, if faster than a limit."""


class RoomOfNumber(Protocol):
    """Which numbers leave room for a plan, by bounds; see `frontends.search.room.Room`."""

    def fits(self, n: int) -> bool:
        """Whether anything may fit."""

    def fits_usual(self, n: int) -> bool:
        """Whether a baseline may fit."""


def with_microbatches(
    of: Callable[[int], PlansOfNumber],
    fewest: int,
    sizes: Sequence[int],
    room: RoomOfNumber,
    promising: Plan | None = None,
) -> Plan:
    """The fastest plan over numbers of microbatches, with the others as alternatives.

    More microbatches make a pipeline's bubble smaller and need less memory. They never make a plan
    without a pipeline faster, so none are tried once pipelines fit and are slower than that.

    Args:
        of: Returns the plans in a number of microbatches.
        fewest: The number to begin with; its plans are also priced in the whole batch.
        sizes: Number of examples in each leaf of the batch.
        room: Says what may fit.
        promising: A plan that is faster than the baselines: its number is searched first.

    Raises:
        NoPlanError: Nothing fits the memory in any number.
    """
    every = list(_doubled(fewest, sizes))
    numbers = [n for n in every if room.fits(n)] or every[-1:]
    baselines = usual_plans(of, fewest, sizes, room)
    if fewest in baselines and _wants_fewer(baselines[fewest]):
        for n in _halved(fewest):
            try:
                baselines[n] = of(n).usual()
            except NoPlanError:
                break
            numbers.insert(0, n)
            if not _wants_fewer(baselines[fewest], baselines[n]):
                break
    searched: dict[int, Plan] = {}
    if baselines:
        n = min(baselines, key=lambda n: baselines[n].step_s)
        if promising is not None:
            n = promising.microbatches
            numbers = sorted({*numbers, n})
        with suppress(NoPlanError):  # with strategy `search`, of which less may fit
            searched[n] = of(n).best()
    if not searched:  # baselines may be impossible for other reasons than memory
        searched = _without_baselines(lambda n: of(n).best(), numbers)
    while True:
        n = min(searched, key=lambda n: searched[n].step_s)
        other = _faster(of, searched[n], n, numbers)
        if other is None:
            fewer = [m for m in _all_numbers(fewest, sizes) if m < n and room.fits(m)]
            alone = _alone(of, _GAIN * searched[n].step_s, fewer)
            if alone is None:
                break
            other, _ = alone
        numbers = sorted({*numbers, other})
        searched[other] = of(other).best()
    return _with_others(searched[n], [*searched.values(), *baselines.values()])


def with_other_schedules(
    of: Callable[[int], PlansOfNumber], plan: Plan, fewest: int, sizes: Sequence[int]
) -> Plan:
    """A plan, or a faster pipeline in a schedule that is not plain.

    Such schedules have less of a bubble, and most of them hold more. So they are tried in the
    number of microbatches of the plan, and in more as long as these make a step shorter.

    Args:
        of: Returns the plans in a number of microbatches.
        plan: The fastest plan with a plain schedule.
        fewest: The smallest number for pipelines, if the plan is none.
        sizes: Number of examples in each leaf of the batch; none to try no other number.
    """
    first = plan.microbatches if len(plan.stages) > 1 else max(plan.microbatches, fewest)
    best = plan
    for n in _doubled(first, sizes):
        faster = of(n).in_other_schedules(_GAIN * best.step_s, search=best is not plan)
        if faster is None:
            break
        best = of(n).best()
    if best is plan:
        return plan
    plain = Alternative(
        f"{plan.schedule}, {plan.microbatches} microbatches",
        plan.step_s,
        plan.memory_bytes,
        f"{plan.step_s / best.step_s:.2f} times as long a step, the fastest plain schedule",
    )
    return replace(best, alternatives=(*best.alternatives, plain))


def usual_plans(
    of: Callable[[int], PlansOfNumber], fewest: int, sizes: Sequence[int], room: RoomOfNumber
) -> dict[int, Plan]:
    """The fastest baselines in increasing numbers of microbatches; those that fit.

    They are looked at until more microbatches bring no gain, but at least until a pipeline of equal
    layers fits, as steps may be much shorter then. The arguments are as for `with_microbatches`.
    """
    plans: dict[int, Plan] = {}
    before_s = math.inf
    for n in _doubled(fewest, sizes):
        if not room.fits_usual(n):
            continue
        try:
            plan = plans[n] = of(n).usual()
        except NoPlanError:
            continue
        has_room = not any(a.name == EQUAL_LAYERS and a.step_s is None for a in plan.alternatives)
        if has_room and (len(plan.stages) == 1 or plan.step_s > _GAIN * before_s):
            break
        before_s = plan.step_s
    return plans


def alike(
    of: Callable[[int], PlansOfNumber],
    plan: Plan,
    usual: Plan,
    fewest: int,
    sizes: Sequence[int],
    room: RoomOfNumber,
) -> Plan:
    """The fastest plan that needs no search: the usual one, in stages of another plan, or in one.

    Args:
        of: Returns the plans in a number of microbatches.
        plan: A plan of a step that does the same otherwise: computes other values again.
        usual: The fastest baseline.
        fewest: The number to begin with.
        sizes: Number of examples in each leaf of the batch.
        room: Says what may fit.
    """
    numbers = [n for n in _all_numbers(fewest, sizes) if room.fits(n)]
    best = usual
    for first in sorted({usual.microbatches, plan.microbatches}.intersection(numbers)):
        for n in numbers[numbers.index(first) :: -1]:
            found = of(n).like(plan)
            if found is None or found.step_s > _GAIN * best.step_s:
                break
            best = found
    alone = _alone(of, min(plan.step_s, best.step_s), numbers)
    return best if alone is None else alone[1]


def _wants_fewer(first: Plan, fewer: Plan | None = None) -> bool:
    """Whether a baseline fits in the first number of microbatches, and not in the whole batch.

    Without a pipeline, the fewest microbatches in which it fits are the fastest.

    Args:
        first: The fastest baseline in the first number, with the others.
        fewer: That in a smaller number; only what still fits counts.
    """
    fit = [_fitting(plan) for plan in (first, fewer) if plan is not None]
    return any(f"{name}, 1 microbatch" not in fit[0] for name in BASELINES if name in fit[-1])


def _fitting(plan: Plan) -> set[str]:
    """The names of what fits: of a plan, and of the others that were priced."""
    return {plan.strategy, *(a.name for a in plan.alternatives if a.step_s is not None)}


def _halved(first: int) -> Iterator[int]:
    """Half of a number, a quarter, and so on, down to 2."""
    while first % 2 == 0 and first > 2:
        first //= 2
        yield first


def _all_numbers(fewest: int, sizes: Sequence[int]) -> list[int]:
    """All numbers that are tried, from few to many."""
    return sorted({1, *_halved(fewest), *_doubled(fewest, sizes)})


def _doubled(fewest: int, sizes: Sequence[int]) -> Iterator[int]:
    """`fewest` and its doubles, as long as they cut every leaf of the batch evenly."""
    yield fewest
    while sizes and fewest > 0 and math.gcd(2 * fewest, *sizes) == 2 * fewest:
        fewest *= 2
        yield fewest


def _without_baselines(plan_of: Callable[[int], Plan], numbers: Sequence[int]) -> dict[int, Plan]:
    """The plan in the first number; if it does not fit, those in decreasing numbers that gain.

    What does not fit in the most microbatches fits in no number, so these come first.

    Args:
        plan_of: Returns the plan in a number of microbatches.
        numbers: The numbers, from few to many.

    Raises:
        NoPlanError: Nothing fits.
    """
    first, *more = numbers
    try:
        return {first: plan_of(first)}
    except NoPlanError:
        if not more:
            raise
    plans = {more[-1]: plan_of(more[-1])}
    before_s = plans[more[-1]].step_s
    with suppress(NoPlanError):
        for n in more[-2::-1]:
            plans[n] = plan_of(n)
            if plans[n].step_s > _GAIN * before_s:
                break
            before_s = plans[n].step_s
    return plans


def _faster(
    of: Callable[[int], PlansOfNumber], plan: Plan, n: int, numbers: Sequence[int]
) -> int | None:
    """The number in which a plan's stages are faster than in `n` microbatches; None if none."""
    place = numbers.index(n)
    fewer = numbers[:place][::-1]
    more = numbers[place + 1 :] if len(plan.stages) > 1 else ()
    for others in (more, fewer):
        fastest, fastest_s = n, plan.step_s
        for other in others:
            alike = of(other).like(plan)
            if alike is None or alike.step_s > _GAIN * fastest_s:
                break
            fastest, fastest_s = other, alike.step_s
        if fastest != n:
            return fastest
    return None


def _alone(
    of: Callable[[int], PlansOfNumber], limit_s: float, numbers: Sequence[int]
) -> tuple[int, Plan] | None:
    """The smallest number in which a plan of one stage fits, with it, if it takes up to a time.

    The fastest plan may be a baseline in the whole batch, which is not searched there otherwise.
    More microbatches take less memory and more time, so the number is found by halving.

    Args:
        of: Returns the plans in a number of microbatches.
        limit_s: The time in seconds.
        numbers: The numbers to try, from few to many.
    """
    found: tuple[int, Plan] | None = None
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2 if low else 0  # in most cases the first one fits
        n = numbers[middle]
        if of(n).one_stage_bound_s() > limit_s:
            high = middle
        elif (plan := of(n).in_one_stage()) is None:
            low = middle + 1
        else:
            found, high = (n, plan), middle
    return found if found is not None and found[1].step_s <= limit_s else None


def _with_others(best: Plan, plans: Sequence[Plan]) -> Plan:
    """`best`, with the fastest plan in each other number of microbatches as an alternative."""
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
