"""`SolverSession`, the state of one solve: the best choice, the lower bound, and the budget.

A method is a function `(problem, run) -> None`, where the run is a session. It offers choices
(`offer`), proves bounds (`raise_bound`), and goes on while `step` returns True. Whatever it offers,
the session keeps only the cheapest feasible choice, so no method can return one that breaks the
limit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral, Real
from operator import index

from autoshard.errors import InfeasibleError, ProblemError
from autoshard.problem.evaluate import evaluate
from autoshard.problem.problem import Problem
from autoshard.problem.solution import Incumbent, Solution

CLOSED = 1e-9
"""Relative gap that counts as closed: it is rounding of sums of doubles, not a better choice."""


class SolverSession:
    """The state of one solve.

    Args:
        problem: The problem to solve.
        time_s: Stop after this many seconds.
        steps: Stop after this many steps of the method, so that the answer depends on nothing but
            problem and seed; `None` is no limit.
        gap: Stop when the relative gap between the best choice and the bound is at most this.
        seed: Seed of all random numbers that the method draws.
        start: A choice to begin with; kept if it is feasible.
        progress: Called with each improvement.
        clock: A monotonic clock, in seconds.

    Raises:
        ProblemError: `start` does not fit the problem, or another argument is out of its range.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        time_s: float,
        steps: int | None = None,
        gap: float = 0.0,
        seed: int = 0,
        start: Sequence[int] | None = None,
        progress: Callable[[Incumbent], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        for misfit in _misfits(time_s, steps, gap, seed, progress):
            raise ProblemError(misfit)
        self.problem = problem
        self.seed = seed
        self.start = None if start is None else _choice(start)
        self.best: tuple[int, ...] | None = None
        """The cheapest feasible choice offered so far."""
        self.objective = math.inf
        """The cost of `best`."""
        self.lower_bound = -math.inf
        """No feasible choice costs less; infinite if provably no choice is feasible."""
        self.smallest_peak = math.inf
        """The smallest peak usage of all offered choices of finite cost, for error messages."""
        self.found_by: str | None = None
        """The part of the method that offered `best`, if it passed a name."""
        self.trace: list[Incumbent] = []
        self.n_steps = 0
        self._time_s = time_s
        self._steps = steps
        self._gap = max(CLOSED, gap)
        self._progress = progress
        self._clock = clock
        self._begun = clock()
        if self.start is not None:
            self.offer(self.start, by="start")

    def offer(self, choice: Sequence[int], *, by: str | None = None) -> bool:
        """Keep a choice if it is feasible and cheaper than the best; returns whether it was kept.

        Args:
            choice: One strategy for each node.
            by: The part of the method that found it, if the method has several.

        Raises:
            ProblemError: the choice has another length or an index out of range.
        """
        judged = evaluate(self.problem, choice)
        if math.isfinite(judged.cost):
            self.smallest_peak = min(self.smallest_peak, judged.peak_usage)
        if not judged.feasible or judged.cost >= self.objective:
            return False
        self.best = tuple(int(strategy) for strategy in choice)
        self.objective, self.found_by = judged.cost, by
        self._note()
        return True

    def raise_bound(self, bound: float) -> None:
        """Record that no feasible choice costs less; infinite means that no choice is feasible."""
        if bound > self.lower_bound:
            worth_telling = bound == math.inf or bound - self.lower_bound > CLOSED * abs(bound)
            self.lower_bound = float(bound)
            if worth_telling:
                self._note()

    @property
    def seconds(self) -> float:
        """Seconds since the session began."""
        return self._clock() - self._begun

    def time_left(self) -> float:
        """Seconds until the time is up; at 0 or less, a method has to stop soon."""
        return self._time_s - self.seconds

    @property
    def is_proved(self) -> bool:
        """Whether provably no choice is better by more than the gap, or no choice is feasible."""
        if self.best is None:
            return self.lower_bound == math.inf
        return self.lower_bound >= self.objective - self._gap * abs(self.objective)

    @property
    def steps_left(self) -> int | None:
        """Steps until the budget is used up; `None` without a budget."""
        return None if self._steps is None else self._steps - self.n_steps

    def step(self, n: int = 1) -> bool:
        """Count steps that a method is about to take.

        Returns:
            Whether to take them: False if fewer steps or no time is left, or the best is proved.
        """
        if self._steps is not None and self.n_steps + n > self._steps:
            return False
        self.n_steps += n
        return not self.is_proved and self.time_left() > 0.0

    def solution(self, method: str) -> Solution:
        """The best choice, as `evaluate` judged it when it was offered.

        Raises:
            InfeasibleError: no feasible choice was found.
        """
        if self.best is None:
            raise self._nothing_found(method)
        return Solution(
            self.best,
            self.objective,
            min(self.lower_bound, self.objective),  # by rounding, a bound may exceed the objective
            self.found_by or method,
            self.seconds,
            tuple(self.trace),
        )

    def _note(self) -> None:
        incumbent = Incumbent(self.seconds, self.objective, self.lower_bound, self.n_steps)
        self.trace.append(incumbent)
        if self._progress is not None:
            self._progress(incumbent)

    def _nothing_found(self, method: str) -> InfeasibleError:
        problem, peak = self.problem, self.smallest_peak
        is_proved = self.lower_bound == math.inf
        spent = f"in {self.n_steps} steps and {self.seconds:.1f} s"
        if math.isfinite(peak) and is_proved:
            return InfeasibleError(
                f"no choice of strategies keeps the usage limit of {problem.usage_limit}; the "
                f"smallest peak usage found is {peak}; raise the limit to that or more",
                peak,
            )
        if math.isfinite(peak):
            return InfeasibleError(
                f"{method} found no choice of strategies that keeps the usage limit of "
                f"{problem.usage_limit} {spent}, and no proof that there is none; the smallest "
                f"peak usage found is {peak}; raise the limit, give it more time or steps, or use "
                "another method",
                peak,
                is_proved=False,
            )
        if is_proved and problem.usage_limit is None:
            return InfeasibleError(
                f"every choice of strategies for the {problem.n_nodes} nodes has a forbidden "
                "strategy or pair (infinite cost); allow more of them"
            )
        if is_proved:
            return InfeasibleError(
                f"no choice of strategies keeps the usage limit of {problem.usage_limit}; "
                "the smallest limit that can be kept was not found in time; raise it, or give more "
                "time"
            )
        return InfeasibleError(
            f"{method} found no choice of strategies for the {problem.n_nodes} nodes without a "
            f"forbidden strategy or pair {spent}; give it more time or steps, or use another "
            "method",
            is_proved=False,
        )


def _choice(start: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(map(index, start))
    except TypeError as error:
        raise ProblemError(f"a start has a whole number for each node; got {error}") from error


def _misfits(
    time_s: object, steps: object, gap: object, seed: object, progress: object
) -> Iterator[str]:
    """Yield a sentence for each argument of a solve that has the wrong type or range."""
    if not (isinstance(time_s, Real) and float(time_s) > 0.0):
        yield f"a solve has a time_s > 0, in seconds; got {time_s!r}"
    if steps is not None and not (isinstance(steps, Integral) and int(steps) >= 1):
        yield f"a solve has steps >= 1, or None for no limit; got {steps!r}"
    if not (isinstance(gap, Real) and 0.0 <= float(gap) < math.inf):
        yield f"a solve has a gap >= 0, relative; got {gap!r}"
    if not (isinstance(seed, Integral) and int(seed) >= 0):
        yield f"a seed is a whole number >= 0; got {seed!r}"
    if progress is not None and not callable(progress):
        yield f"progress is a function of an Incumbent, or None; got progress={progress!r}"
