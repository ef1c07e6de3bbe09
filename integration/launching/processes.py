"""Starts processes for a test, and ends all of them with it, in any case."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launching import stacks

_WRITING_S = 2.0
"""The time for launchers to pass on the last output of their processes."""


class StillRunningError(AssertionError):
    """Processes did not end in time; the message has the stacks of their threads."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The results of processes that have ended."""

    status: int
    """The exit status of the first process, which may have launched the others."""

    output: str
    """The output of all processes, including errors."""


class Started:
    """Running processes.

    Args:
        first: The process that was started; it may start others.
        mark: The mark of all these processes.
        log: The file that they print to.
        errors: A folder where they write errors to files that end in `.err`; None if they do not.
    """

    def __init__(
        self, first: subprocess.Popen[bytes], mark: str, log: Path, errors: Path | None
    ) -> None:
        self._first, self._mark, self._log, self._errors = first, mark, log, errors

    @property
    def output(self) -> str:
        """The output of all processes until now."""
        return self._log.read_text(errors="replace")

    def check(self) -> None:
        """Raise `AssertionError` with the output if the first process has ended."""
        status = self._first.poll()
        assert status is None, f"processes run on; they ended with {status}:\n{self.output}"

    def wait(self, deadline_s: float) -> Ended:
        """Wait until the first process has ended.

        Raises:
            StillRunningError: It has not ended in time; then the processes that run Python are
                ended.
        """
        try:
            status = self._first.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise self.late(deadline_s) from None
        return Ended(status, self.output)

    def late(self, deadline_s: float) -> StillRunningError:
        """The error that shows where all processes hang; ends those that run Python."""
        shown = stacks.show(self._mark)
        until_s = time.monotonic() + _WRITING_S
        while stacks.marked(self._mark) and time.monotonic() < until_s:
            time.sleep(0.05)
        files = [] if self._errors is None else sorted(self._errors.glob("*.err"))
        errors = [f"{path.name}:\n{path.read_text(errors='replace')}" for path in files]
        return StillRunningError(
            f"processes end within {deadline_s:g} s; these were still running, with stacks:\n"
            + "\n".join([shown, self.output, *errors])
        )


@contextmanager
def started(
    command: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    errors: Path | None = None,
    **options: Any,
) -> Iterator[Started]:
    """Start a command; all its processes end with the block.

    Args:
        command: The command.
        env: Environment variables in addition to those of this process.
        cwd: The working directory.
        errors: A folder where processes write errors to files that end in `.err`.
        options: Further options of `subprocess.Popen`.
    """
    mark = uuid.uuid4().hex
    above = os.environ.get(stacks.MARK, "")
    variables = {
        "OMP_NUM_THREADS": "1",
        **stacks.ENVIRONMENT,
        **(env or {}),
        stacks.MARK: f"{above}/{mark}",
    }
    with tempfile.NamedTemporaryFile(prefix="launched-", suffix=".log") as log:
        first = subprocess.Popen(
            command,
            env={**os.environ, **variables},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            **options,
        )
        try:
            yield Started(first, mark, Path(log.name), errors)
        finally:
            stacks.end(mark)
            first.wait(60)


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    deadline_s: float,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    errors: Path | None = None,
) -> Ended:
    """Start a command and wait until it has ended; the arguments are those of `started`.

    Raises:
        StillRunningError: It has not ended in time.
    """
    with started(command, env=env, cwd=cwd, errors=errors) as processes:
        return processes.wait(deadline_s)
