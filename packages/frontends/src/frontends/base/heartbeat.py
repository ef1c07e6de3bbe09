"""See that all processes of a run are alive and get on; end this one, with a reason, if not.

Every process tells all others, once in a while, that it is there and how far it is. How far is a
place in the one order of instructions that all follow, so whoever is furthest behind waits for
nobody: if nobody gets on, that is the process to look at.

They tell each other through a key-value store: that of `jax.distributed`, which process 0 keeps, or
that of `torch.distributed`, which torchrun keeps. Who finds out first what is wrong tells the
others, and all stay until they have said it: launchers kill what is left when one process has
ended. A process that a launcher tells to end says why, if another one has gone silent.
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
"""How much later than another a process may be ready, while it is alive: plans take minutes."""

_REMINDER_S = 60
_AT_ONCE_S = 0.001
_VERDICT = "verdict"
_FAILED, _ENDED, _TOLD = _LAST_WORDS = "failed", "ended", "told"

_SILENT_PERIODS = 5
"""After a launcher told this process to end: who says nothing for so long is why. torchrun waits
for 30 s before it kills."""

_STAY_PERIODS = 10
"""How long a process that has said why it ends waits at most until the others have said it, too."""


class Store(Protocol):
    """Texts by key, which all processes of a run see. Any call may raise `ConnectionError`."""

    keeper: str
    """Who is at fault if it does not answer."""

    def put(self, key: str, text: str) -> None:
        """Write a text, also over one that is there."""

    def read(self, folder: str, names: list[str]) -> dict[str, str]:
        """By name the texts that are there, of some keys that begin with `folder`."""

    def wait(self, key: str, seconds: float) -> str | None:
        """A text as soon as it is there; None if it is not in time."""


class Watched:
    """Where a step is, for the watch."""

    def __init__(self, watch: Watch) -> None:
        self._watch, (self._step, _) = watch, watch.position
        self.place = 0

    @property
    def place(self) -> int:
        """Of the instruction that runs."""
        return self._watch.position[1]

    @place.setter
    def place(self, place: int) -> None:
        self._watch.position = self._step, place

    def done(self) -> None:
        """The step is."""
        self._watch.position = self._step + 1, -1


class Watch:
    """One process's word to the others, and its ear.

    Args:
        store: That of all processes; used from other threads.
        process: Which of them this is.
        n_processes: How many there are.
        deadline_s: How long nothing may be heard of a process, and how long a step may stand still.
    """

    def __init__(
        self, store: Store, process: int, n_processes: int, deadline_s: float = 60.0
    ) -> None:
        self.position = (0, -1)
        """Steps that are done, and place in the order of instructions of the next; -1 before it."""

        self.deadline_s = deadline_s
        self._waits_for: tuple[int, str, str] | None = None
        self._store, self._process, self._n = store, process, n_processes
        self._host = socket.gethostname()
        self._is_over = threading.Event()
        self._said = self._found_nobody = False
        self._heard: dict[int, tuple[str, float]] = {}
        """By process its last word, and when it was new."""

        self._hook = sys.excepthook
        sys.excepthook = self._on_error
        atexit.register(self.close)
        self._is_told_to_end = False
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_term)
        self._talked_s = time.monotonic()
        # At once: who is killed before its first word would never be missed.
        self._say("begun", "{} {}".format(*self.position))
        self._thread = threading.Thread(target=self._work, name="watch", daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch_store, name="watch store", daemon=True).start()

    def close(self) -> None:
        """This process is done; the others need not wait for it."""
        if not self._is_over.is_set():
            self._is_over.set()
            if self._said:
                self._stay()
            # It says that this process has ended, as calls to the store may not come back; and one
            # that comes back when Python is gone would abort the process.
            self._thread.join(self.deadline_s)

    @contextmanager
    def step(self, is_anothers: Callable[[BaseException], bool]) -> Iterator[Watched]:
        """A step of this process; errors become known to all processes.

        Args:
            is_anothers: Whether an error is what another process's end looks like from here.
        """
        watched = Watched(self)
        try:
            yield watched
        except BaseException as error:  # it crosses to the processes that wait in this step
            if is_anothers(error):
                self.wait_for_reason()
            else:
                self.fail(error)
            raise
        watched.done()

    def fail(self, error: BaseException) -> None:
        """Tell the others why this process cannot go on."""
        if not self._said:
            self._said = True
            self._say(_FAILED, f"{type(error).__name__}: {error}")

    def wait_for_reason(self) -> None:
        """What failed here failed because of another process: wait until it is known which.

        The watch ends this process then. It returns if nobody is found to be at fault, and at once
        if nobody was before: what failed once fails again.
        """
        self._thread.join(0.0 if self._found_nobody else 2 * self.deadline_s)
        self._found_nobody = True

    def wait_for(self, process: int, key: str, doing: str) -> str:
        """What another process puts into the store.

        Args:
            process: Which.
            key: Where.
            doing: What it does before, for whoever looks why nothing happens.

        Raises:
            DeviceError: It is alive, but does not come in an hour.
        """
        self._waits_for = process, key, doing
        for waited_s in range(_REMINDER_S, PATIENCE_S + 1, _REMINDER_S):
            try:
                word = self._store.wait(key, _REMINDER_S)
            except ConnectionError:
                self.wait_for_reason()
                raise
            if word is not None:
                self._waits_for = None
                return word
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
        """How long nothing may be heard of a process."""
        soon_s = _SILENT_PERIODS * self._period_s
        return min(self.deadline_s, soon_s) if self._is_told_to_end else self.deadline_s

    def _say(self, what: str, more: str = "") -> None:
        self._set(str(self._process), f"{what}|{self._host}|{more}")

    def _set(self, name: str, text: str) -> None:
        # An error is for `_watch_store`: the store answers, or who keeps it is at fault.
        with contextlib.suppress(ConnectionError):
            self._store.put(f"{_FOLDER}{name}", text)

    def _watch_store(self) -> None:
        """Calls to the store of a process that is stopped do not come back."""
        while not self._is_over.wait(self._period_s):
            if time.monotonic() - self._talked_s > 1.5 * self.deadline_s:
                self._end(
                    f"{self._store.keeper} does not answer the others: it was killed or is stopped"
                )

    def _on_error(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """An error that nobody catches ends all processes, and none waits for another."""
        self._hook(kind, error, trace)
        if not self._is_over.is_set():
            self.fail(error)
            self._stay()
        sys.stderr.flush()
        sys.stdout.flush()
        os._exit(1)

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        """A launcher ends this process, because of another one perhaps: then say which."""
        self._is_told_to_end = True
        self._thread.join(2 * _SILENT_PERIODS * self._period_s)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    def _stay(self, verdict: str | None = None) -> None:
        """Until the others have heard what this one said, and have said it."""
        until_s = time.monotonic() + _STAY_PERIODS * self._period_s
        # In a thread: calls to the store of a process that is stopped do not come back.
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
        with contextlib.suppress(ConnectionError):  # who keeps the store has ended
            while time.monotonic() < until_s and not all(
                word.startswith(_LAST_WORDS) for word in self._store.read(_FOLDER, others).values()
            ):
                time.sleep(self._period_s / 4)

    def _is_silent(self, process: int) -> bool:
        """Whether a process has said nothing for a few periods."""
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
            told = self._listen()
            if told is None:
                continue
            self._talked_s = now_s
            for process in range(self._n):
                if process not in told:
                    continue  # it is not there yet
                if process not in self._heard or told[process] != self._heard[process][0]:
                    self._heard[process] = told[process], now_s
                self._judge(process, told[process], now_s - self._heard[process][1])
            if self.position != at:
                at, since_s = self.position, now_s
            is_late = place >= 0 and now_s - since_s > self.deadline_s
            if is_late and not self._said and not self._is_one_silent():
                self._end(self._who_is_behind(told))
        if not self._said:
            self._say(_ENDED, "{} {}".format(*self.position))

    def _listen(self) -> dict[int, str] | None:
        try:
            told = self._store.read(_FOLDER, [_VERDICT, *map(str, range(self._n))])
        except ConnectionError:
            return None
        if _VERDICT in told:
            self._end(told[_VERDICT], is_known=True)
        return {int(process): text for process, text in told.items()}

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
        """A process may end when all others have what they need of it."""
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
        """Whether the store has something; what a process gave before it ended is there."""
        with contextlib.suppress(ConnectionError):
            return self._store.wait(key, _AT_ONCE_S) is not None
        return False

    def _is_one_silent(self) -> bool:
        """Whether a process may be stopped: it is, or its place is known, after a few periods."""
        return any(
            self._is_silent(process)
            for process, (word, _) in self._heard.items()
            if process != self._process and not word.startswith(_LAST_WORDS)
        )

    def _who_is_behind(self, told: dict[int, str]) -> str:
        """Whoever is at the least place."""
        places = {}
        for process, text in told.items():
            what, host, more = text.split("|", 2)
            if what != _ENDED:
                step, place = map(int, more.split())
                places[process] = (step, place), host
        process = min(places, key=lambda p: (places[p][0], p))
        (step, place), host = places[process]
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
