"""Ends a process that waits too long, with an error that says for whom.

Each process notes in a shared folder, if it has one, what it does; a thread watches its deadline.
Libraries wait in C for processes that never come, so raising an exception would reach nobody: the
thread ends the process itself.
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
"""Environment variable: where the processes of one run leave notes for each other."""


@dataclass
class Watch:
    """What this process does, and until when it may."""

    rank: int
    n_processes: int
    deadline_s: float
    """Seconds for one step."""
    end: Callable[[str], None] = field(default=lambda message: fail(message))
    _step: int = 0
    _doing: str = "the start"
    _since: float = field(default_factory=time.monotonic)
    _is_over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._note()
        threading.Thread(target=self._watch, daemon=True).start()

    def begin(self, doing: str) -> None:
        """Note the next step; every process has the same ones in the same order."""
        self._doing, self._step, self._since = doing, self._step + 1, time.monotonic()
        self._note()

    def finish(self) -> None:
        """Stop watching."""
        self._is_over.set()

    def _watch(self) -> None:
        while not self._is_over.wait(min(0.2, self.deadline_s / 4)):
            if time.monotonic() - self._since > self.deadline_s:
                self.end(self.complaint())
                return

    def complaint(self) -> str:
        """Who waits for whom, as far as the notes tell."""
        text = f"rank {self.rank} has been in {self._doing} for more than {self.deadline_s:g} s"
        behind, elsewhere = [], []
        for rank in range(self.n_processes):
            if rank == self.rank:
                continue
            step, doing = self._read(rank)
            if step is None:
                elsewhere.append(str(rank))
            elif step < self._step:
                behind.append(f"rank {rank}, which is still in {doing}")
        if behind:
            return f"{text} and waits for {', and for '.join(behind)}"
        if elsewhere:
            return f"{text} and waits for rank {', '.join(elsewhere)}, of which nothing is known"
        return f"{text}, as are all ranks; give it more time with --deadline-s, or less to do"

    def _note(self) -> None:
        if folder := os.environ.get(FOLDER):
            path = Path(folder, f"rank-{self.rank}")
            part = path.with_suffix(".part")
            part.write_text(f"{self._step} {self._doing}")
            part.replace(path)  # nobody reads a half

    def _read(self, rank: int) -> tuple[int | None, str]:
        try:
            text = Path(os.environ[FOLDER], f"rank-{rank}").read_text()
        except (KeyError, OSError):
            return None, ""
        step, _, doing = text.partition(" ")
        return int(step), doing


def fail(message: str) -> None:
    """End this process at once; the message goes to who started it, or else to the terminal."""
    if folder := os.environ.get(FOLDER):
        Path(folder, f"error-{time.time_ns()}").write_text(message)
    else:
        print(f"error: {message}", file=sys.stderr, flush=True)
    os._exit(1)
