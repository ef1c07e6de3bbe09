"""Ends a process that waits too long, with an error that says for which rank.

Each process writes its current step into a shared folder, if there is one, and a thread watches its
deadline. Libraries wait in C for processes that never come, where an exception would have no
effect. Therefore the thread ends the process itself.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = "COSTMODEL_CALIBRATE_FOLDER"
"""Environment variable with the folder in which the processes of one run leave notes."""


@dataclass
class StepDeadline:
    """The current step of this process, and its deadline, which a thread watches."""

    rank: int
    n_processes: int
    deadline_s: float
    """Seconds for one step."""
    end: Callable[[str], None] = field(default=lambda message: fail(message))
    """Called with a message after the deadline; ends the process."""
    _step: int = 0
    _doing: str = "the start"
    _since: float = field(default_factory=time.monotonic)
    _is_over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._note()
        threading.Thread(target=self._watch, daemon=True).start()

    def begin(self, doing: str) -> None:
        """Starts the next step; all processes have the same steps in the same order."""
        self._doing, self._step, self._since = doing, self._step + 1, time.monotonic()
        self._note()

    def finish(self) -> None:
        """Stops watching the deadline."""
        self._is_over.set()

    def complaint(self) -> str:
        """A message that says for which ranks this one waits, as far as the notes tell."""
        text = f"rank {self.rank} has been in {self._doing} for more than {self.deadline_s:g} s"
        others = [rank for rank in range(self.n_processes) if rank != self.rank]
        behind = [reason for rank in others if (reason := self._behind(rank))]
        if behind:
            return f"{text} and waits for {', and for '.join(behind)}"
        return f"{text}, as are all ranks; give it more time with --deadline-s, or measure less"

    def _watch(self) -> None:
        while not self._is_over.wait(min(0.2, self.deadline_s / 4)):
            if time.monotonic() - self._since > self.deadline_s:
                self.end(self.complaint())
                return
            if path := _path(self.rank):
                os.utime(path)  # a sign of life

    def _note(self) -> None:
        if path := _path(self.rank):
            part = path.with_suffix(".part")
            part.write_text(f"{self._step} {self._doing}")
            part.replace(path)  # so that no process reads half a note

    def _behind(self, rank: int) -> str:
        """A rank that is not yet in this rank's step, and why; "" if it is."""
        path = _path(rank)
        if path is None or not path.exists():
            return f"rank {rank}, of which nothing is known"
        step, _, doing = path.read_text().partition(" ")
        silent_s = time.time() - path.stat().st_mtime
        if silent_s > self.deadline_s / 2:
            return f"rank {rank}, which has given no sign of life since {doing}"
        return f"rank {rank}, which is still in {doing}" if int(step) < self._step else ""


def _path(rank: int) -> Path | None:
    folder = os.environ.get(FOLDER)
    return Path(folder, f"rank-{rank}") if folder else None


def fail(message: str) -> None:
    """Ends this process at once; the message goes to the process that started it, or to stderr."""
    if folder := os.environ.get(FOLDER):
        Path(folder, f"error-{time.time_ns()}").write_text(message)
    else:
        print(f"error: {message}", file=sys.stderr, flush=True)
    os._exit(1)
