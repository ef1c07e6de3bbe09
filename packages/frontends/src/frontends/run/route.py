"""The messages of one process on one lane, which are exchanged one after the other."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import crossmesh

from frontends.errors import ExchangeError, PeerError
from frontends.program.register_allocation import Shards
from frontends.run.lanes import Lane, Message


@dataclass(slots=True)
class PendingMessage:
    """One message in one step, until it is received."""

    message: Message
    plan: crossmesh.TransferPlan
    route: Route
    shards: Any
    """The shards to send; None until this process has computed them."""

    is_done: threading.Event = field(default_factory=threading.Event)
    """Set when the message has arrived or failed, so that nobody needs to wait for it any more."""

    received: Mapping[str, Shards] | None = None


class Route:
    """Advances the messages of a lane in one thread, while another thread waits for them.

    Args:
        lane: The lane.
        me: The number of this process.
        transport: Connects the processes of the lane.
        deadline_s: How long a wait may last without progress on the lane.
    """

    def __init__(self, lane: Lane, me: int, transport: Any, deadline_s: float) -> None:
        self.lane, self.deadline_s = lane, deadline_s
        self.pending: deque[PendingMessage] = deque()
        self._me, self._transport = me, transport
        self._execution: crossmesh.Execution | None = None
        self._still_since_s = math.inf

    def begin(self) -> list[PendingMessage]:
        """Begin a step: its messages are queued after those of the previous step."""
        waits = self._me in self.lane.senders
        messages = []
        for message in self.lane.messages:
            plan = self.lane.plans[message[0]]
            shards: Any = None if waits else {tensor.name: {} for tensor in plan.tensors}
            messages.append(PendingMessage(message, plan, self, shards))
        self.pending += messages
        return messages

    @property
    def is_ready(self) -> bool:
        """Whether the first message has its shards, so that it can be advanced."""
        return bool(self.pending) and self.pending[0].shards is not None

    def wait(self, pending: PendingMessage, grace_s: float) -> bool:
        """Wait until a message is done; False if the lane makes no progress until the deadline.

        Args:
            pending: A message of this lane.
            grace_s: How much longer to wait, so that the thread which advances the lane can notice
                and report the reason first.
        """
        self._still_since_s = monotonic()
        try:
            at_most_s = self.deadline_s + grace_s
            while not pending.is_done.wait(max(0.0, at_most_s - self._still_s())):
                if self._still_s() >= at_most_s:
                    return False
            return True
        finally:
            self._still_since_s = math.inf

    def advance(self) -> bool:
        """Advance the first message; False if nothing could be done but wait.

        Raises:
            ExchangeError: The message failed; the lane cannot be used any more.
        """
        if not self.is_ready:
            return False
        try:
            return self._advance(self.pending[0])
        except Exception as error:
            raise self._failed(self.pending[0], error) from error

    def _advance(self, pending: PendingMessage) -> bool:
        if self._execution is None:
            self._execution = crossmesh.Execution(
                pending.plan,
                pending.shards,
                self._transport,
                window=4,
                deadline_s=self.deadline_s,
                clock=self._still_s,
            )
        moved = False
        while self._execution.step():
            moved = True
        if not self._execution.done:
            return moved
        received: Any = self._execution.result
        pending.received = received
        self._execution = pending.shards = None
        self.pending.popleft()
        if self._still_since_s < math.inf:
            self._still_since_s = monotonic()
        pending.is_done.set()
        return True

    def _still_s(self) -> float:
        """How long a thread has waited since the lane's last message; 0 if none waits.

        Messages are queued long before they are sent, so only a waiting thread means that one is
        late.
        """
        return max(0.0, monotonic() - self._still_since_s)

    def late(self, pending: PendingMessage, others: tuple[int, ...] = ()) -> PeerError:
        """The error for a wait that has lasted too long.

        Args:
            pending: The message that does not arrive.
            others: The processes that this one waits for; by default all others of the lane.
        """
        waited_for = others or tuple(p for p in self.lane.processes if p != self._me)
        return PeerError(
            f"no exchange between processes stands still for {self.deadline_s:g} s; process "
            f"{self._me} waits for process {', '.join(map(str, waited_for))} in "
            f"{self._name(pending)}: see what it does, or raise deadline_s"
        )

    def _failed(self, pending: PendingMessage, error: Exception) -> ExchangeError:
        processes = self.lane.processes
        if isinstance(error, crossmesh.DeadlineError):
            late = self.late(pending, tuple(processes[rank] for rank in error.waiting_for))
            late.culprits = tuple(processes[rank] for rank in error.culprits)
            return late
        who = processes[error.rank] if isinstance(error, crossmesh.RankError) else self._me
        kind = PeerError if isinstance(error, crossmesh.TransferError) else ExchangeError
        failed = kind(
            f"values that processes send to each other must arrive; {self._name(pending)} failed "
            f"in process {who}: {type(error).__name__}: {error}; see what happened there, and go "
            "on from the last checkpoint with new processes"
        )
        if isinstance(failed, PeerError) and isinstance(error, crossmesh.TransferError):
            failed.culprits = tuple(processes[rank] for rank in error.culprits)
        return failed

    def _name(self, pending: PendingMessage) -> str:
        transfer, microbatch = pending.message
        what = f"transfer {transfer}" if transfer >= 0 else "the results of a step"
        of = "" if microbatch is None else f" of microbatch {microbatch}"
        return f"{what}{of} between processes {', '.join(map(str, self.lane.processes))}"
