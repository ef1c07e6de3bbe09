"""Show a search while it runs: what is tried, the best plan so far, and the bound."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text
from shardspec.amounts import bytes_text, seconds_text

from frontends.answer.plan import Plan
from frontends.report.text import add_row, make_table

_SHOWN = 10
"""The last tries that a terminal shows."""


@dataclass(frozen=True, slots=True)
class _Try:
    """What was tried, and what came of it."""

    what: str
    step_s: float | None
    memory_bytes: int
    result: str


class SearchDisplay:
    """Shows a search; to be used in a `with` block.

    `progress` and `on_plan` are those of `PlanOptions`. If the output is not a terminal, each try
    gets a line.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._tries: deque[_Try] = deque(maxlen=_SHOWN)
        self._number = 0
        self._best: tuple[str, Plan] | None = None
        self._now = ""

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._now = ""
        self._show()
        if self._live is not None:
            self._live.stop()

    def progress(self, job: str, done: int, total: int) -> None:
        """Show what is done now."""
        self._now = f"{job}: {done:,} of {total:,}"
        self._show()

    def on_plan(self, what: str, plan: Plan | str) -> None:
        """Show a plan that was tried, or why there is none."""
        self._number += 1
        if isinstance(plan, str):
            tried = _Try(what, None, 0, f"cannot run: {plan}")
        else:
            tried = _Try(what, plan.step_s, plan.memory_bytes, self._compared(plan))
            if self._best is None or plan.step_s < self._best[1].step_s:
                self._best = (what, plan)
        self._tries.append(tried)
        if self._live is None:
            seconds = "" if tried.step_s is None else f"{seconds_text(tried.step_s)}, "
            self._console.print(f"{what}: {seconds}{tried.result}", soft_wrap=True)
        self._show()

    def _compared(self, plan: Plan) -> str:
        """A plan beside the best one before it."""
        if self._best is None or plan.step_s < self._best[1].step_s:
            return "best so far"
        best_s = self._best[1].step_s
        return f"{plan.step_s / best_s:.2f} times the best" if best_s else "no faster"

    def _show(self) -> None:
        if self._live is not None:
            self._live.update(self._view(), refresh=True)

    def _view(self) -> Group:
        table = make_table("", "tried", numbers=("step", "memory"), wrapped="result")
        for tried in self._tries:
            memory = bytes_text(tried.memory_bytes) if tried.memory_bytes else ""
            seconds = "" if tried.step_s is None else seconds_text(tried.step_s)
            add_row(table, tried.what, seconds, memory, tried.result)
        table.title = None
        return Group(Text(self._headline(), "bold"), Text(self._now), table)

    def _headline(self) -> str:
        if self._best is None:
            return f"Plans tried: {self._number}; none runs yet"
        what, plan = self._best
        bound = ""
        if plan.lower_bound_s > 0:
            ratio = plan.step_s / plan.lower_bound_s
            bound = f", {ratio:.2f} times the bound {seconds_text(plan.lower_bound_s)}"
        return (
            f"Plans tried: {self._number}. Best so far: {seconds_text(plan.step_s)} a step{bound}: "
            f"{what}"
        )
