"""Progress of a solve on standard error: seconds, incumbent, bound and gap."""

from __future__ import annotations

import math
import sys
import threading
import time
from types import TracebackType

from autoshard.problem.solution import Incumbent
from autoshard.solvers.session import CLOSED

QUIET_S = 2.0
"""Nothing is shown before this many seconds."""
EVERY_S = 0.5
"""The interval of updates on a terminal. Elsewhere, a line is written at each doubling of the
time."""


class ProgressLine:
    """Shows progress: one line that is overwritten on a terminal, occasional lines elsewhere.

    Args:
        title: The name of what is solved.
        shown: Whether to show anything; `None` shows it if standard error is a terminal.
    """

    def __init__(self, title: str, shown: bool | None = None) -> None:
        self._title = title
        self._terminal = sys.stderr.isatty()
        self._shown = self._terminal if shown is None else shown
        self._last = Incumbent(0.0, math.inf, -math.inf)
        self._begun = time.monotonic()
        self._next_s = QUIET_S
        self._drawn = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __call__(self, incumbent: Incumbent) -> None:
        """Record an improvement, to be shown at the next update."""
        self._last = incumbent

    def __enter__(self) -> ProgressLine:
        if self._shown:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._shown:
            self._thread.join()
        if self._drawn:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def _look(self) -> None:
        while not self._ended.wait(EVERY_S):
            seconds = time.monotonic() - self._begun
            if seconds < self._next_s:
                continue
            text = f"{self._title}: {seconds:.0f} s, {describe(self._last)}"
            if self._terminal:
                print(f"\r\033[K{text[:100]}", end="", file=sys.stderr, flush=True)
                self._drawn = True
            else:
                print(text, file=sys.stderr, flush=True)
                self._next_s = 2.0 * seconds


def describe(incumbent: Incumbent) -> str:
    """Cost, bound and gap in a few words.

    Examples:
        >>> describe(Incumbent(1.0, 2000.0, 1990.0))
        'cost 2,000, bound 1,990, gap 0.5 %'
        >>> describe(Incumbent(1.0, math.inf, -math.inf))
        'nothing feasible yet, no bound yet'
    """
    cost, bound, gap = "nothing feasible yet", "no bound yet", ""
    if math.isfinite(incumbent.objective):
        cost = f"cost {number(incumbent.objective)}"
    if math.isfinite(incumbent.lower_bound):
        bound = f"bound {number(incumbent.lower_bound)}"
    if math.isfinite(incumbent.gap):
        open_part = incumbent.gap if incumbent.gap > CLOSED else 0.0
        gap = f", gap {100 * open_part:.2g} %"
    return f"{cost}, {bound}{gap}"


def number(value: float) -> str:
    """A number as text: whole and large numbers in full, others to six digits.

    Examples:
        >>> number(84102445200.0), number(0.00012345678)
        ('84,102,445,200', '0.000123457')
    """
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1e6 else f"{value:.6g}"
