"""`Solution`: a choice with its cost, its lower bound, and the trace of improvements."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best objective and lower bound at one moment of a solve."""

    seconds: float
    """Since the solve began."""
    objective: float
    """The cost of the best feasible choice so far; infinite before the first."""
    lower_bound: float
    """The best bound proved so far; minus infinity before the first."""
    steps: int = 0
    """Steps of the method taken so far."""

    @property
    def gap(self) -> float:
        """See `relative_gap`."""
        return relative_gap(self.objective, self.lower_bound)


@dataclass(frozen=True, slots=True)
class Solution:
    """A choice with its cost and a proved lower bound."""

    choice: tuple[int, ...]
    """One strategy for each node."""
    objective: float
    """The cost of the choice."""
    lower_bound: float
    """No feasible choice costs less."""
    method: str
    """The method that found the choice: a name of `METHODS`, or a part of `auto`."""
    seconds: float
    """The time spent solving."""
    trace: tuple[Incumbent, ...] = ()
    """Each improvement of objective or bound, in order."""

    @property
    def gap(self) -> float:
        """How far the objective may be from the optimum; see `relative_gap`."""
        return relative_gap(self.objective, self.lower_bound)


def relative_gap(objective: float, lower_bound: float) -> float:
    """`(objective - lower_bound) / |objective|`; 0 where they are equal.

    Examples:
        >>> relative_gap(100.0, 90.0), relative_gap(0.0, 0.0)
        (0.1, 0.0)
        >>> relative_gap(math.inf, 90.0), relative_gap(0.0, -1.0)
        (inf, inf)
    """
    if objective <= lower_bound:
        return 0.0
    if not math.isfinite(objective - lower_bound) or objective == 0.0:
        return math.inf
    return (objective - lower_bound) / abs(objective)
