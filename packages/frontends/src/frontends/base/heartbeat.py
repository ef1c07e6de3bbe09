"""Heartbeats: end this process, with a reason, if another one of the run fails or hangs.

Every process periodically publishes that it is alive, and its position: the index of its current
instruction in the one order of instructions that all processes follow. The process that is furthest
behind thus waits for nobody; if no process makes progress, it is the one to look at.

Messages go through a key-value store: that of `jax.distributed`, which process 0 hosts, or that of
`torch.distributed`, which torchrun hosts. The process that first finds out what is wrong publishes
it as the verdict, and all stay alive until every one has printed it, because launchers kill the
remaining processes when one has ended. A process that a launcher terminates prints the reason, if
another process has gone silent.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import NoReturn, Protocol

from frontends.errors import DeviceError

_FOLDER = "meshwright/watch/"
PATIENCE_S = 3600
"""How long a process waits for another one that is alive: planning takes minutes."""

_REMINDER_S = 60
_VERDICT = "verdict"
_FAILED, _ENDED, _TOLD = _LAST_WORDS = "failed", "ended", "told"

_SILENT_PERIODS = 5
"""After a launcher has sent this process SIGTERM: a process that has been silent for this many
periods is taken to be the cause. torchrun kills 30 s after it sends SIGTERM."""

_STAY_PERIODS = 10
"""How many periods a process that has printed why it ends waits at most for the others to do so."""


class Store(Protocol):
    """A key-value store of texts that all processes of a run share.

    Any call may raise `ConnectionError`.
    """

    keeper: str
    """The process that hosts the store, and is at fault if it does not answer."""

    def put(self, key: str, text: str) -> None:
        """Write a text, and overwrite the previous one."""

    def read(self, folder: str, names: list[str]) -> dict[str, str]:
        """The texts under the keys `folder` + name, by name; without those that nobody has put."""

    def wait(self, key: str, seconds: float) -> str | None:
        """Wait for a text; None if nobody puts it in this time."""


class Watched:
    """The position of this process within a step, which a `Watch` publishes."""

    def __init__(self, watch: Watch) -> None:
        self._watch, (self._step, _) = watch, watch.position
        self.place = 0

    @property
    def place(self) -> int:
        """Index of the instruction that runs."""
        return self._watch.position[1]

    @place.setter
    def place(self, place: int) -> None:
        self._watch.position = self._step, place

    def done(self) -> None:
        """Publish that the step is complete."""
        self._watch.position = self._step + 1, -1


class Watch:
    """Heartbeat of one process: publishes its position, reads those of the others.

    Args:
        store: The store that all processes share; used from other threads.
        process: The number of this process.
        n_processes: How many processes the run has.
        deadline_s: How long a process may be silent, and how long a step may make no progress.
    """

    def __init__(
        self, store: Store, process: int, n_processes: int, deadline_s: float = 60.0
    ) -> None:
        self.position = (0, -1)
        """Number of completed steps, and index of the instruction that the next one is at.

        The index is -1 before that step begins."""

        self.deadline_s = deadline_s
        self._waits_for: tuple[int, str, str] | None = None
        self._store, self._process, self._n = store, process, n_processes
        self._host = socket.gethostname()
        self._is_over = threading.Event()
        self._said = self._found_nobody = False
        self._heard: dict[int, tuple[str, float]] = {}
        """By process: the last text that it published, and when this text was first read."""

        self._hook = sys.excepthook
        sys.excepthook = self._on_error
        atexit.register(self.close)
        self._is_told_to_end = False
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_term)
        self._talked_s = time.monotonic()
        # At once: nobody would miss a process that is killed before it has published anything.
        self._say("begun", "{} {}".format(*self.position))
        self._thread = threading.Thread(target=self._work, name="watch", daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch_store, name="watch store", daemon=True).start()

    def close(self) -> None:
        """Publish that this process is done, so that the others do not wait for it."""
        if not self._is_over.is_set():
            self._is_over.set()
            if self._said:
                self._stay()
            # The thread publishes that this process has ended, as a call to the store may never
            # return; and one that returns after Python has shut down would abort the process.
            self._thread.join(self.deadline_s)

    @contextmanager
    def step(self, is_anothers: Callable[[BaseException], bool]) -> Iterator[Watched]:
        """A context for one step of this process; publishes its errors to all processes.

        Args:
            is_anothers: Whether an error here is the effect of another process's end.
        """
        with self._telling(is_anothers):
            watched = Watched(self)
            yield watched
        watched.done()

    @contextmanager
    def begin(self, is_anothers: Callable[[BaseException], bool]) -> Iterator[None]:
        """A context in which this process waits for the others before its next step.

        A process that comes later than `deadline_s` is named, and ends all.

        Args:
            is_anothers: As in `step`.
        """
        with self._telling(is_anothers):
            watched = Watched(self)
            yield
        watched.place = -1

    @contextmanager
    def _telling(self, is_anothers: Callable[[BaseException], bool]) -> Iterator[None]:
        """Inside, other processes wait for this one: they are told of its errors."""
        try:
            yield
        except BaseException as error:  # else the others would wait until the deadline
            if is_anothers(error):
                self.wait_for_reason()
            else:
                self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Publish why this process cannot go on."""
        if not self._said:
            self._said = True
            self._say(_FAILED, f"{type(error).__name__}: {error}")

    def wait_for_reason(self) -> None:
        """After a failure that another process caused: wait until it is known which process.

        The watch then ends this process. This returns if no process turns out to be at fault, and
        at once if none did in an earlier call, since the same failure may repeat.
        """
        self._thread.join(0.0 if self._found_nobody else 2 * self.deadline_s)
        self._found_nobody = True

    def wait_for(self, process: int, key: str, doing: str) -> str:
        """The text that another process puts into the store.

        Args:
            process: The process to wait for.
            key: The key that it puts the text under.
            doing: What it does before that, for the message to a user who waits.

        Raises:
            DeviceError: The process is alive, but has not put the text within an hour.
        """
        self._waits_for = process, key, doing
        for waited_s in range(_REMINDER_S, PATIENCE_S + 1, _REMINDER_S):
            try:
                text = self._store.wait(key, _REMINDER_S)
            except ConnectionError:
                self.wait_for_reason()
                raise
            if text is not None:
                self._waits_for = None
                return text
            if self._process == 0:
                print(
                    f"meshwright: process 0 has waited {waited_s} s for process {process} "
                    f"to {doing}",
                    file=sys.stderr,
                )
        raise DeviceError(
            f"all processes of a run do the same; process {self._process} has waited "
            f"{PATIENCE_S} s for process {process} to {doing}: see what that one does instead"
        )

    @property
    def _period_s(self) -> float:
        return min(1.0, self.deadline_s / 10)

    @property
    def _silence_s(self) -> float:
        """How long a process may be silent."""
        soon_s = _SILENT_PERIODS * self._period_s
        return min(self.deadline_s, soon_s) if self._is_told_to_end else self.deadline_s

    def _say(self, what: str, more: str = "") -> None:
        self._set(str(self._process), f"{what}|{self._host}|{more}")

    def _set(self, name: str, text: str) -> None:
        # `_watch_store` reports a store that does not answer.
        with contextlib.suppress(ConnectionError):
            self._store.put(f"{_FOLDER}{name}", text)

    def _watch_store(self) -> None:
        """End this process if the store stops answering.

        A call to a store whose host is stopped never returns, so a thread of its own checks this.
        """
        while not self._is_over.wait(self._period_s):
            if time.monotonic() - self._talked_s > 1.5 * self.deadline_s:
                self._end(
                    f"{self._store.keeper} does not answer the others: it was killed or is stopped"
                )

    def _on_error(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Let an uncaught error end all processes, so that none waits for this one."""
        self._hook(kind, error, trace)
        if not self._is_over.is_set():
            self.fail(error)
            self._stay()
        sys.stderr.flush()
        sys.stdout.flush()
        os._exit(1)

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        """On SIGTERM: wait for the thread to find and print another process as the cause."""
        self._is_told_to_end = True
        self._thread.join(2 * _SILENT_PERIODS * self._period_s)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    def _stay(self, verdict: str | None = None) -> None:
        """Wait until the others have read what this process published, and have printed it."""
        until_s = time.monotonic() + _STAY_PERIODS * self._period_s
        # In a thread: a call to a store whose host is stopped never returns.
        telling = threading.Thread(target=self._tell, args=(verdict, until_s), daemon=True)
        telling.start()
        telling.join((_STAY_PERIODS + 1) * self._period_s)

    def _tell(self, verdict: str | None, until_s: float) -> None:
        if verdict is not None:
            self._set(_VERDICT, verdict)
        if not self._said:
            self._said = True
            self._say(_TOLD, "{} {}".format(*self.position))
        others = [
            str(process)
            for process in range(self._n)
            if process != self._process and not self._is_silent(process)
        ]
        with contextlib.suppress(ConnectionError):  # the host of the store has ended
            while time.monotonic() < until_s and not all(
                word.startswith(_LAST_WORDS) for word in self._store.read(_FOLDER, others).values()
            ):
                time.sleep(self._period_s / 4)

    def _is_silent(self, process: int) -> bool:
        """Whether a process has published nothing for a few periods."""
        _, at_s = self._heard.get(process, ("", math.inf))
        return time.monotonic() - at_s > _SILENT_PERIODS * self._period_s

    def _work(self) -> None:
        beats = itertools.count()
        at, since_s = self.position, time.monotonic()
        while not self._is_over.wait(self._period_s):
            step, place = self.position
            if not self._said:
                self._say(str(next(beats)), f"{step} {place}")
            now_s = time.monotonic()
            texts = self._listen()
            if texts is None:
                continue
            self._talked_s = now_s
            for process in range(self._n):
                if process not in texts:
                    continue  # it has not started yet
                if process not in self._heard or texts[process] != self._heard[process][0]:
                    self._heard[process] = texts[process], now_s
                self._judge(process, texts[process], now_s - self._heard[process][1])
            if self.position != at:
                at, since_s = self.position, now_s
            is_late = place >= 0 and now_s - since_s > self.deadline_s
            if is_late and not self._said and not self._is_one_silent():
                self._end(self._who_is_behind(texts))
        if not self._said:
            self._say(_ENDED, "{} {}".format(*self.position))

    def _listen(self) -> dict[int, str] | None:
        try:
            texts = self._store.read(_FOLDER, [_VERDICT, *map(str, range(self._n))])
        except ConnectionError:
            return None
        if _VERDICT in texts:
            self._end(texts[_VERDICT], is_known=True)
        return {int(process): text for process, text in texts.items()}

    def _judge(self, process: int, text: str, silent_s: float) -> None:
        what, host, more = text.split("|", 2)
        if process == self._process:
            return
        if what == _FAILED:
            self._end(f"process {process} on {host} failed: {more}")
        if what == _ENDED:
            self._judge_ended(process, host, int(more.split()[0]))
        elif silent_s > self._silence_s:
            self._end(
                f"process {process} on {host} has not been heard of for {silent_s:.0f} s: "
                "it was killed or is stopped"
            )

    def _judge_ended(self, process: int, host: str, n_steps: int) -> None:
        """End this process if it needs something from the other one, which has ended."""
        awaited = self._waits_for
        if awaited is not None and awaited[0] == process and not self._has(awaited[1]):
            self._end(
                f"process {process} on {host} has ended, and process {self._process} waits for it "
                f"to {awaited[2]}"
            )
        step, place = self.position
        if place >= 0 and n_steps <= step:
            self._end(
                f"process {process} on {host} has ended after {n_steps} steps, and process "
                f"{self._process} is in step {step}: all processes make the same steps"
            )

    def _has(self, key: str) -> bool:
        """Whether the store has a text; those of a process that has ended stay in it.

        This is asked while another thread waits in the store, so it cannot wait there.
        """
        folder, _, name = key.rpartition("/")
        with contextlib.suppress(ConnectionError):
            return name in self._store.read(f"{folder}/", [name])
        return False

    def _is_one_silent(self) -> bool:
        """Whether another process may be stopped, so that its position may be out of date.

        A few periods later, either its position is known again, or it is found to be stopped.
        """
        return any(
            self._is_silent(process)
            for process, (text, _) in self._heard.items()
            if process != self._process and not text.startswith(_LAST_WORDS)
        )

    def _who_is_behind(self, texts: dict[int, str]) -> str:
        """The message that names the process with the smallest position."""
        positions = {}
        for process, text in texts.items():
            what, host, more = text.split("|", 2)
            if what != _ENDED:
                step, place = map(int, more.split())
                positions[process] = (step, place), host
        process = min(positions, key=lambda p: (positions[p][0], p))
        (step, place), host = positions[process]
        where = f"before step {step}" if place < 0 else f"at instruction {place} of step {step}"
        return (
            f"no step stands still for {self.deadline_s:g} s; process {process} on {host} "
            f"is {where}, and all others wait for it: see what it does, or raise deadline_s"
        )

    def _end(self, reason: str, is_known: bool = False) -> NoReturn:
        print(f"meshwright: process {self._process}: {reason}", file=sys.stderr, flush=True)
        self._stay(None if is_known else reason)
        sys.stdout.flush()
        os._exit(1)
