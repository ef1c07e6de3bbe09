"""Show progress: bars on a terminal, a few lines if the output goes to a file."""

from __future__ import annotations

import os
import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from frontends.report.text import WIDTH


def make_console(*, stderr: bool = False) -> Console:
    """A console for standard output, or for errors; without a terminal, as wide as our tables."""
    console = Console(highlight=False, markup=False, emoji=False, stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH
    return console


class Display:
    """Shows the progress of several jobs; to be called inside a `with` block.

    An instance can be the `progress` of `frontends.jax.parallelize`. If the output is not a
    terminal, it gets a line at every tenth of a job.

    Args:
        console: Where to show it.
        pause_s: The least time before a first line and between two, if this is no terminal.
    """

    def __init__(self, console: Console, pause_s: float = 0.0) -> None:
        self._console, self._pause_s, self._last_s = console, pause_s, time.monotonic()
        self._bars = Progress(
            TextColumn("{task.description:<17}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._job = ""
        self._tenth = 0

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()
        for task in self._bars.task_ids:
            self._bars.remove_task(task)
        self._job = ""

    def __call__(self, job: str, done: int, total: int, note: str = "") -> None:
        """Show that `done` of `total` parts of a job are done; another name starts a new job."""
        if job != self._job:
            self._job, self._tenth = job, 0
            self._bars.add_task(job, total=total, note=note)
        self._bars.update(self._bars.task_ids[-1], completed=done, total=total, note=note)
        tenth = 10 * done // max(1, total)
        now_s = time.monotonic()
        is_due = tenth > self._tenth and now_s - self._last_s >= self._pause_s
        if not self._console.is_terminal and is_due:
            self._tenth, self._last_s = tenth, now_s
            self._console.print(f"{job} {done}/{total} {note}".rstrip())
