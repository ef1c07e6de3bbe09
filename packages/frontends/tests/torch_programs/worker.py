"""A process that judges programs, so that one that hangs or crashes stops nothing else."""

from __future__ import annotations

import contextlib
import multiprocessing
from multiprocessing.connection import Connection

from frontends.torch.fuzzing import Verdict

from torch_programs.corpus import PROGRAMS

LIMIT_S = 240


def _serve(pipe: Connection) -> None:
    """In a process of its own: judge the programs whose names come."""
    with contextlib.suppress(EOFError):  # the other side is done
        while True:
            pipe.send(PROGRAMS[pipe.recv()].judged())


class Worker:
    """A process that judges one program after another, and is replaced if it dies or hangs."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def judge(self, name: str) -> Verdict:
        self._pipe.send(name)
        try:
            if self._pipe.poll(LIMIT_S):
                found = self._pipe.recv()
                assert isinstance(found, Verdict)
                return found
            found = Verdict("HANG", "the process answers nothing")
        except (EOFError, ConnectionError):
            found = Verdict("RAW", f"the process died, {self._process.exitcode}")
        self._process.kill()
        self._start()
        return found
