"""Carry values between processes while they compute: crossmesh's executions, in a thread.

Between every two stages messages go one after the other, in the order in which the plan sends them.
All processes know that order, so who only receives begins at once, and a message can arrive while
its receiver computes. One thread steps all that is open: frameworks compute without Python's lock.

Only who waits is late: a message that nobody waits for yet may take as long as its sender computes.
After an exchange that failed every call is refused, as its processes are not connected any more.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from frontends.base.present import present
from frontends.errors import ExchangeError
from frontends.program.register_allocation import Shards
from frontends.run.lanes import Connect, Lane, Message
from frontends.run.route import Job, Route

_SHORTEST_NAP_S = 50e-6
_LONGEST_NAP_S = 1e-3
"""Of crossmesh's MPI transport, which says why."""

_IDLE_S = 1.0
"""How often the thread looks for work of which nobody told it: there is none."""

_GRACE_S = 2.0
"""How long who waits leaves it to the thread to say what it was that did not come."""


class Courier:
    """This process's part of all lanes.

    Args:
        lanes: Those of all processes, in an order that is the same everywhere.
        me: This process.
        connect: Connects the processes of a lane.
        deadline_s: How long a wait may stand still.
    """

    def __init__(self, lanes: Sequence[Lane], me: int, connect: Connect, deadline_s: float) -> None:
        self._routes = [
            Route(lane, me, connect(number, lane), deadline_s)
            for number, lane in enumerate(lanes)
            if me in lane.processes
        ]
        self._jobs: dict[Message, Job] = {}
        self._steps: deque[list[Job]] = deque()
        """The last message of each lane, of the steps that may not be over."""

        self._changed = threading.Condition()
        self._error: ExchangeError | None = None
        self._is_in_step = self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="courier", daemon=True)
        self._thread.start()
        atexit.register(_close, weakref.ref(self))

    def begin(self) -> None:
        """A step begins: get ready for all its messages.

        Those of the step before the last are over by then: no more than two steps' pile up.

        Raises:
            ExchangeError: One failed, or does not get on.
        """
        if len(self._steps) == 2:
            for job in self._steps.popleft():
                self._wait(job)
        with self._changed:
            self._check()
            self._is_in_step = True
            begun = [route.begin() for route in self._routes]
            self._steps.append([jobs[-1] for jobs in begun])
            self._jobs = {job.message: job for jobs in begun for job in jobs}
            self._changed.notify()

    def end(self) -> None:
        """A step has ended here; what it has sent may be under way."""
        self._is_in_step = False

    def close(self) -> None:
        """Stop, when what others still wait for has arrived: this process may end before them.

        After a step that was broken off nothing more is coming, and nothing is waited for.
        """
        if not self._is_in_step:
            for job in itertools.chain(*self._steps):
                with contextlib.suppress(ExchangeError):  # the others have heard of it
                    self._wait(job)
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(_GRACE_S)

    def send(self, transfer: int, microbatch: int | None, shards: Any) -> None:
        """Begin to send what this process has; for several tensors, by name.

        Raises:
            ExchangeError: One failed before.
        """
        job = self._jobs[transfer, microbatch]
        (name, *others) = (tensor.name for tensor in job.plan.tensors)
        named = bool(others) or name in shards
        with self._changed:
            self._check()
            job.shards = shards if named else {name: shards}
            self._changed.notify()

    def receive(self, transfer: int, microbatch: int | None) -> Shards:
        """Wait for the shards of this process.

        Raises:
            ExchangeError: This exchange failed, or another one before, or it does not get on.
        """
        (found,) = self.receive_all(transfer, microbatch).values()
        return found

    def receive_all(self, transfer: int, microbatch: int | None) -> Mapping[str, Shards]:
        """The same where a transfer has several tensors: by name."""
        job = self._jobs[transfer, microbatch]
        self._wait(job)
        received, job.received = job.received, None  # it may be freed before the step is over
        return present(received, "a message is received once a step")

    def _wait(self, job: Job) -> None:
        """Until a message has arrived everywhere."""
        if not job.route.wait(job, _GRACE_S):
            self._fail(job.route.late(job))
        if job.received is None:
            self._check()

    def _check(self) -> None:
        """Raise what failed: a new error each time, as a raised one keeps what its step had."""
        if self._error is not None:
            raise type(self._error)(*self._error.args) from self._error.__cause__

    def _fail(self, error: ExchangeError) -> None:
        """From now on all calls are refused; the first reason stays."""
        with self._changed:
            self._error = self._error or error
            for route in self._routes:
                for job in list(route.jobs):
                    job.is_done.set()

    def _work(self) -> None:
        nap_s = _SHORTEST_NAP_S
        while self._error is None and not self._is_closed:
            with self._changed:
                if not any(route.is_ready for route in self._routes):
                    self._changed.wait(_IDLE_S)
                    continue
            try:
                moved = [route.advance() for route in self._routes]
            except ExchangeError as error:
                self._fail(error)
                return
            if any(moved):
                nap_s = _SHORTEST_NAP_S
            else:
                time.sleep(nap_s)
                nap_s = min(2 * nap_s, _LONGEST_NAP_S)


def _close(courier: weakref.ref[Courier]) -> None:
    """At the end of the process; whoever is gone by then was not in use."""
    if (found := courier()) is not None:
        found.close()
