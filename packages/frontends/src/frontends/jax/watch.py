"""See that all processes of a run are alive and get on; end this one, with a reason, if not.

Every process tells all others, once in a while, that it is there and how far it is. How far is a
place in the one order of instructions that all follow, so whoever is furthest behind waits for
nobody: if nobody gets on, that is the process to look at.

They tell each other through the key-value store of `jax.distributed`, which process 0 keeps. Who
finds out first what is wrong tells the others, and all stay until they have said it: launchers kill
what is left when one process has ended.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import socket
import sys
import threading
import time
from types import TracebackType
from typing import Any, NoReturn

import jax

_numbers = itertools.count()
"""Of the runs of this process: equal in all, as all make the same runs in the same order."""

_FAILED, _ENDED, _VERDICT = "failed", "ended", "verdict"


class Watch:
    """One process's word to the others, and its ear.

    Args:
        client: Of `jax.distributed`.
        process: Which of them this is.
        n_processes: How many there are.
        deadline_s: How long nothing may be heard of a process, and how long a step may stand still.
    """

    def __init__(self, client: Any, process: int, n_processes: int, deadline_s: float) -> None:
        self.position = (0, -1)
        """Step, and place in the order of instructions; -1 before a step."""

        self.folder = f"meshwright/{next(_numbers)}/"
        """Of this run's keys."""

        self._client, self._process, self._n = client, process, n_processes
        self._deadline_s = deadline_s
        self._period_s = min(1.0, deadline_s / 10)
        self._words = f"{self.folder}watch/"
        self._host = socket.gethostname()
        self._is_over = threading.Event()
        self._said = False
        self._hook = sys.excepthook
        sys.excepthook = self._on_error
        atexit.register(self.close)
        self._talked_s = time.monotonic()
        self._thread = threading.Thread(target=self._work, name="watch", daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch_store, name="watch store", daemon=True).start()

    def close(self) -> None:
        """This process is done; the others need not wait for it."""
        if not self._is_over.is_set():
            self._is_over.set()
            self._say(_ENDED)

    def fail(self, error: BaseException) -> None:
        """Tell the others why this process cannot go on."""
        if not self._said:
            self._said = True
            self._say(_FAILED, f"{type(error).__name__}: {error}")

    def wait_for_reason(self) -> None:
        """What failed here failed because of another process: wait until it is known which.

        The watch ends this process then. It returns if nobody is found to be at fault.
        """
        self._thread.join(2 * self._deadline_s)

    def _say(self, what: str, more: str = "") -> None:
        self._set(str(self._process), f"{what}|{self._host}|{more}")

    def _set(self, name: str, text: str) -> None:
        # An error is for `_watch_store`: the store answers, or process 0 is at fault.
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self._client.key_value_set(f"{self._words}{name}", text, allow_overwrite=True)

    def _watch_store(self) -> None:
        """Calls to the store of a process that is stopped do not come back."""
        while not self._is_over.wait(self._period_s):
            if time.monotonic() - self._talked_s > 1.5 * self._deadline_s:
                self._end("process 0 does not answer the others: it was killed or is stopped")

    def _on_error(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """An error that nobody catches ends all processes, and none waits for another."""
        self._hook(kind, error, trace)
        if not self._is_over.is_set():
            self.fail(error)
            time.sleep(4 * self._period_s)  # until the others have heard it, and said it
        sys.stderr.flush()
        sys.stdout.flush()
        os._exit(1)

    def _work(self) -> None:
        heard: dict[int, tuple[str, float]] = {}
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
                if process not in heard or told[process] != heard[process][0]:
                    heard[process] = told[process], now_s
                self._judge(process, told[process], now_s - heard[process][1])
            if self.position != at:
                at, since_s = self.position, now_s
            if place >= 0 and now_s - since_s > self._deadline_s and not self._said:
                self._end(self._who_is_behind(told))

    def _listen(self) -> dict[int, str] | None:
        try:
            found = self._client.key_value_dir_get(self._words)
        except jax.errors.JaxRuntimeError:
            return None
        told = {key.rsplit("/", 1)[1]: text for key, text in found}
        if _VERDICT in told:
            self._end(told[_VERDICT], is_known=True)
        return {int(process): text for process, text in told.items()}

    def _judge(self, process: int, text: str, silent_s: float) -> None:
        what, host, more = text.split("|", 2)
        if process == self._process or what == _ENDED:
            return
        if what == _FAILED:
            self._end(f"process {process} on {host} failed: {more}")
        if silent_s > self._deadline_s:
            self._end(
                f"process {process} on {host} has not been heard of for {silent_s:.0f} s: "
                "it was killed or is stopped"
            )

    def _who_is_behind(self, told: dict[int, str]) -> str:
        """Whoever is at the least place; an ended process comes first."""
        places = {}
        for process, text in told.items():
            what, host, more = text.split("|", 2)
            step, place = (-1, -1) if what == _ENDED else map(int, more.split())
            places[process] = (step, place), host
        process = min(places, key=lambda p: (places[p][0], p))
        (step, place), host = places[process]
        where = "has ended" if step < 0 else f"is at instruction {place} of step {step}"
        return (
            f"no step stands still for {self._deadline_s:g} s; process {process} on {host} "
            f"{where}, and all others wait for it: see what it does, or raise deadline_s"
        )

    def _end(self, reason: str, is_known: bool = False) -> NoReturn:
        print(f"meshwright: process {self._process}: {reason}", file=sys.stderr, flush=True)
        if not is_known:
            teller = threading.Thread(target=self._set, args=(_VERDICT, reason), daemon=True)
            teller.start()  # it may not come back
        time.sleep(3 * self._period_s)
        sys.stdout.flush()
        os._exit(1)
