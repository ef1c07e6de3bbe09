"""Exchange values between processes while they compute: crossmesh's executions, in a thread.

Between two stages, messages are sent one after the other, in the order in which the plan sends
them. All processes know this order, so a process that only receives begins at once, and a message
can arrive while its receiver computes. One thread advances all exchanges; frameworks release the
GIL while they compute.

The deadline applies only while a process waits for a message; until then, a message may take as
long as its sender computes. After an exchange has failed, every call is refused, as its processes
are not connected any more.
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
from frontends.run.route import PendingMessage, Route

_SHORTEST_NAP_S = 50e-6
_LONGEST_NAP_S = 1e-3
"""As in crossmesh's MPI transport, which explains them."""

_IDLE_S = 1.0
"""How often the thread looks for work, in addition to when it is notified of some."""

_GRACE_S = 2.0
"""How long a waiting caller gives the thread, after the deadline, to report the reason first."""


class Courier:
    """The messages of this process on all lanes.

    Args:
        lanes: The lanes of all processes, in the same order in each process.
        me: The number of this process.
        connect: Connects the processes of a lane.
        deadline_s: How long a wait may last without progress.
    """

    def __init__(self, lanes: Sequence[Lane], me: int, connect: Connect, deadline_s: float) -> None:
        self._routes = [
            Route(lane, me, connect(number, lane), deadline_s)
            for number, lane in enumerate(lanes)
            if me in lane.processes
        ]
        self._pending: dict[Message, PendingMessage] = {}
        self._steps: deque[list[PendingMessage]] = deque()
        """For each step that may not be over, the last message of each lane."""

        self._changed = threading.Condition()
        self._error: ExchangeError | None = None
        self._is_in_step = self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="courier", daemon=True)
        self._thread.start()
        atexit.register(_close, weakref.ref(self))

    def begin(self) -> None:
        """Begin a step: prepare all its messages.

        First, this waits for the messages of the step before the last, so that those of at most two
        steps are pending.

        Raises:
            ExchangeError: A message failed, or makes no progress.
        """
        if len(self._steps) == 2:
            for pending in self._steps.popleft():
                self._wait(pending)
        with self._changed:
            self._check()
            self._is_in_step = True
            begun = [route.begin() for route in self._routes]
            self._steps.append([messages[-1] for messages in begun])
            self._pending = {p.message: p for messages in begun for p in messages}
            self._changed.notify()

    def end(self) -> None:
        """End a step; messages that this process sent in it may still be pending."""
        self._is_in_step = False

    def close(self) -> None:
        """Stop after the messages that other processes wait for have arrived.

        So this process may end before the others. After a step that was interrupted, no message
        will arrive, and this does not wait.
        """
        if not self._is_in_step:
            for pending in itertools.chain(*self._steps):
                with contextlib.suppress(ExchangeError):  # the others know of it, too
                    self._wait(pending)
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(_GRACE_S)

    def send(self, transfer: int, microbatch: int | None, shards: Any) -> None:
        """Begin to send the shards of this process; if a transfer has several tensors, by name.

        Raises:
            ExchangeError: An exchange failed before.
        """
        pending = self._pending[transfer, microbatch]
        (name, *others) = (tensor.name for tensor in pending.plan.tensors)
        named = bool(others) or name in shards
        with self._changed:
            self._check()
            pending.shards = shards if named else {name: shards}
            self._changed.notify()

    def receive(self, transfer: int, microbatch: int | None) -> Shards:
        """Wait for the shards that this process receives.

        Raises:
            ExchangeError: This exchange makes no progress, or this or an earlier one failed.
        """
        (shards,) = self.receive_all(transfer, microbatch).values()
        return shards

    def receive_all(self, transfer: int, microbatch: int | None) -> Mapping[str, Shards]:
        """Like `receive`, for a transfer of several tensors: shards by name of the tensor."""
        pending = self._pending[transfer, microbatch]
        self._wait(pending)
        # Drop the reference, so that the value can be freed before the step is over.
        received, pending.received = pending.received, None
        return present(received, "a message is received once a step")

    def _wait(self, pending: PendingMessage) -> None:
        """Wait until a message has arrived at all its receivers."""
        if not pending.route.wait(pending, _GRACE_S):
            self._fail(pending.route.late(pending))
        if pending.received is None:
            self._check()

    def _check(self) -> None:
        """Raise the error of a failed exchange, if there is one.

        It is a new error each time, as a raised one keeps references to the values of its step.
        """
        if self._error is not None:
            again = type(self._error)(*self._error.args)
            vars(again).update(vars(self._error))  # the processes to blame
            raise again from self._error.__cause__

    def _fail(self, error: ExchangeError) -> None:
        """Refuse all calls from now on, with the first error."""
        with self._changed:
            self._error = self._error or error
            for route in self._routes:
                for pending in list(route.pending):
                    pending.is_done.set()

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
    """At the end of the process, close a courier that still exists."""
    if (existing := courier()) is not None:
        existing.close()
