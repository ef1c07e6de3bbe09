"""End a search when its time is over, with the best plan that it has found."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from frontends.answer.plan import Plan
from frontends.errors import NoPlanError
from frontends.plan.plan_fields import Alternative
from frontends.search.plan_options import PlanOptions

_OTHERS = 8
"""Of the plans that were tried, the most that are named as alternatives [chosen]."""


class _TimeIsOver(Exception):  # noqa: N818 (nobody sees it)
    """Unwinds a search; only `Deadline` raises and catches it."""


@dataclass
class Deadline:
    """The time of a search, and what it has found so far.

    A search looks at the clock whenever it reports progress, or a plan that it has tried. So it
    ends late by the time between two reports, in which a step may be traced. What it has reported
    as tried is all that it has found.
    """

    given: PlanOptions
    """The options of the search; `search_deadline_s` is its time."""

    must_find: bool = True
    """Whether to go on until one plan is found."""

    found: dict[str, Plan] = field(default_factory=dict)
    """By what was tried, the fastest plan that came of it."""

    is_over: bool = False
    """Whether the deadline has ended the search."""

    _end_s: float = 0.0
    _doing: str = "tracing"

    @property
    def options(self) -> PlanOptions:
        """The options to search with, which watch the time."""
        if self.given.search_deadline_s is None:
            return self.given
        return replace(self.given, progress=self._progress, on_plan=self._on_plan)

    def search(self, make: Callable[[], Plan]) -> Plan:
        """The plan that a search with `options` returns, or the fastest so far at the deadline.

        Raises:
            NoPlanError: Nothing was found in time, and the search need not go on.
        """
        seconds = self.given.search_deadline_s
        if seconds is None:
            return make()
        self._end_s = time.monotonic() + seconds
        try:
            return make()
        except _TimeIsOver:
            self.is_over = True
            if not self.found:
                raise NoPlanError(f"no plan was found in {seconds:g} s") from None
            return self._best(seconds)

    def _progress(self, what: str, done: int, of: int) -> None:
        self.given.tell(what, done, of)
        self._doing = what
        self._check()

    def _on_plan(self, what: str, plan: Plan | str) -> None:
        self.given.tell_plan(what, plan)
        if isinstance(plan, Plan):  # some are tried again, with other shares of a device's memory
            self.found[what] = min(self.found.get(what, plan), plan, key=lambda each: each.step_s)
        self._check()

    def _check(self) -> None:
        if time.monotonic() >= self._end_s and (self.found or not self.must_find):
            raise _TimeIsOver

    def _best(self, seconds: float) -> Plan:
        """The fastest plan, with others, and with what was being done."""
        (_, best), *others = sorted(self.found.items(), key=lambda item: item[1].step_s)
        named = [
            Alternative(
                what,
                plan.step_s,
                plan.memory_bytes,
                f"{plan.step_s / best.step_s:.2f} times as long a step"
                if best.step_s
                else "no faster",
            )
            for what, plan in others[:_OTHERS]
        ]
        over = f"search_deadline_s={seconds:g} was over while {self._doing}: give it more time"
        named.append(Alternative("what was not tried", None, None, over))
        asked = self.given.strategy
        strategy = best.strategy if asked == "auto" else asked
        return replace(best, strategy=strategy, alternatives=tuple(named))
