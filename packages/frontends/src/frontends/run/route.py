"""One process's part of one lane: the messages of its steps, one after the other."""

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
class Job:
    """One message in one step."""

    message: Message
    plan: crossmesh.TransferPlan
    route: Route
    shards: Any
    """None until they are there."""

    is_done: threading.Event = field(default_factory=threading.Event)
    """Whether nobody needs to wait for it any more: it arrived, or failed."""

    received: Mapping[str, Shards] | None = None


class Route:
    """Steps a lane's messages; from one thread, while another one waits for them.

    Args:
        lane: What goes, and between whom.
        me: This process.
        transport: Connects them.
        deadline_s: How long a wait for it may stand still.
    """

    def __init__(self, lane: Lane, me: int, transport: Any, deadline_s: float) -> None:
        self.lane, self.deadline_s = lane, deadline_s
        self.jobs: deque[Job] = deque()
        self._me, self._transport = me, transport
        self._execution: crossmesh.Execution | None = None
        self._still_since_s = math.inf

    def begin(self) -> list[Job]:
        """A step begins: its messages follow those of the last one."""
        waits = self._me in self.lane.senders
        jobs = []
        for message in self.lane.messages:
            plan = self.lane.plans[message[0]]
            shards: Any = None if waits else {tensor.name: {} for tensor in plan.tensors}
            jobs.append(Job(message, plan, self, shards))
        self.jobs += jobs
        return jobs

    @property
    def is_ready(self) -> bool:
        """Whether there is a message whose shards are there."""
        return bool(self.jobs) and self.jobs[0].shards is not None

    def wait(self, job: Job, grace_s: float) -> bool:
        """Wait until a job is over; False if the lane stands still for longer than it may.

        Args:
            job: Of this lane.
            grace_s: How much longer, for who steps it to find that out first and say why.
        """
        self._still_since_s = monotonic()
        try:
            at_most_s = self.deadline_s + grace_s
            while not job.is_done.wait(max(0.0, at_most_s - self._still_s())):
                if self._still_s() >= at_most_s:
                    return False
            return True
        finally:
            self._still_since_s = math.inf

    def advance(self) -> bool:
        """Step the first message; False if there was nothing but to wait.

        Raises:
            ExchangeError: It failed; then the lane is of no use any more.
        """
        if not self.is_ready:
            return False
        try:
            return self._advance(self.jobs[0])
        except Exception as error:
            raise self._failed(self.jobs[0], error) from error

    def _advance(self, job: Job) -> bool:
        if self._execution is None:
            self._execution = crossmesh.Execution(
                job.plan,
                job.shards,
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
        job.received = received
        self._execution = job.shards = None
        self.jobs.popleft()
        if self._still_since_s < math.inf:
            self._still_since_s = monotonic()
        job.is_done.set()
        return True

    def _still_s(self) -> float:
        """How long somebody has waited here since the last message; 0 while nobody does.

        Messages are announced long before they are sent, so only this tells that one is late.
        """
        return max(0.0, monotonic() - self._still_since_s)

    def late(self, job: Job, others: tuple[int, ...] = ()) -> ExchangeError:
        """What there is to say where a wait has lasted too long.

        Args:
            job: What does not arrive.
            others: The processes that are waited for; all others of the lane, if it is not known.
        """
        found = others or tuple(p for p in self.lane.processes if p != self._me)
        return PeerError(
            f"no exchange between processes stands still for {self.deadline_s:g} s; process "
            f"{self._me} waits for process {', '.join(map(str, found))} in {self._name(job)}: "
            "see what it does, or raise deadline_s"
        )

    def _failed(self, job: Job, error: Exception) -> ExchangeError:
        processes = self.lane.processes
        if isinstance(error, crossmesh.DeadlineError):
            return self.late(job, tuple(processes[rank] for rank in error.waiting_for))
        who = processes[error.rank] if isinstance(error, crossmesh.RankError) else self._me
        kind = PeerError if isinstance(error, crossmesh.TransferError) else ExchangeError
        return kind(
            f"what processes send to each other arrives; {self._name(job)} failed in process "
            f"{who}: {type(error).__name__}: {error}; see what became of it, and go on from the "
            "last checkpoint with new processes"
        )

    def _name(self, job: Job) -> str:
        transfer, microbatch = job.message
        what = f"transfer {transfer}" if transfer >= 0 else "what a step returns"
        of = "" if microbatch is None else f" of microbatch {microbatch}"
        return f"{what}{of} between processes {', '.join(map(str, self.lane.processes))}"
