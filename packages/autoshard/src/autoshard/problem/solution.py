"""A choice with its proof, and how it was improved."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Incumbent:
    """What was known at one moment of a solve."""

    seconds: float
    """Since it began."""
    objective: float
    """Of the best feasible choice so far; infinite before the first."""
    lower_bound: float
    """Proved so far; minus infinity before the first."""
    steps: int = 0
    """Of the method, taken so far."""

    @property
    def gap(self) -> float:
        """See `relative_gap`."""
        return relative_gap(self.objective, self.lower_bound)


@dataclass(frozen=True, slots=True)
class Solution:
    """A choice with its proof."""

    choice: tuple[int, ...]
    """One strategy a node."""
    objective: float
    """What it costs."""
    lower_bound: float
    """No feasible choice costs less."""
    method: str
    """What found it: a name of `METHODS`, or the part of `auto` that did."""
    seconds: float
    """Spent solving."""
    trace: tuple[Incumbent, ...] = ()
    """Each improvement of objective or bound, in order."""

    @property
    def gap(self) -> float:
        """How far the objective may be from the optimum; see `relative_gap`."""
        return relative_gap(self.objective, self.lower_bound)


def relative_gap(objective: float, lower_bound: float) -> float:
    """`(objective - lower_bound) / |objective|`, and 0 where they meet.

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
