"""Carry values between processes while they compute: crossmesh's executions over MPI, in a thread.

Between every two stages messages go one after the other, in the order in which the plan sends them.
All processes know that order, so who only receives begins at once, and a message can arrive while
its receiver computes. One thread steps all that is open: XLA runs without Python's lock.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import crossmesh

from frontends.binding import Shards

_SHORTEST_NAP_S = 50e-6
_LONGEST_NAP_S = 1e-3
"""Of crossmesh's MPI transport, which says why."""

Message = tuple[int, int | None]
"""A transfer and a microbatch."""


@dataclass(frozen=True, slots=True)
class Lane:
    """What processes exchange one after the other."""

    processes: tuple[int, ...]
    """All that have a part in it."""

    messages: tuple[Message, ...]
    """Of one step, in order."""

    plans: Mapping[int, crossmesh.TransferPlan]
    """By transfer."""

    senders: frozenset[int]
    """The processes that have something to give."""


@dataclass(slots=True)
class _Job:
    """One message in one step."""

    plan: crossmesh.TransferPlan
    shards: Any
    """None until they are there."""

    is_done: threading.Event = field(default_factory=threading.Event)
    received: Any = None


class Courier:
    """This process's part of all lanes.

    Args:
        lanes: Those of all processes, in an order that is the same everywhere.
        process_of: The process of each device.
    """

    def __init__(self, lanes: Sequence[Lane], process_of: Mapping[int, int]) -> None:
        from mpi4py import MPI

        world = MPI.COMM_WORLD
        me = world.rank
        self._lanes: list[tuple[Lane, Any]] = []
        for tag, lane in enumerate(lanes):
            if me in lane.processes:
                comm = world.Create_group(world.group.Incl(lane.processes), tag)
                rank = {process: i for i, process in enumerate(lane.processes)}
                rank_of = {d: rank[p] for d, p in process_of.items() if p in rank}
                self._lanes.append((lane, crossmesh_mpi().MpiTransport(comm, rank_of)))
        self._me = me
        self._queues: list[deque[_Job]] = [deque() for _ in self._lanes]
        self._jobs: dict[Message, _Job] = {}
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="courier", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """A step begins: get ready for all its messages."""
        with self._changed:
            self._jobs.clear()
            for (lane, _), queue in zip(self._lanes, self._queues, strict=True):
                for message in lane.messages:
                    plan = lane.plans[message[0]]
                    waits = self._me in lane.senders
                    job = _Job(plan, None if waits else {t.name: {} for t in plan.tensors})
                    self._jobs[message] = job
                    queue.append(job)
            self._changed.notify()

    def send(self, transfer: int, microbatch: int | None, shards: Any) -> None:
        """Begin to send what this process has; for several tensors, by name."""
        job = self._jobs[transfer, microbatch]
        (name, *others) = (tensor.name for tensor in job.plan.tensors)
        named = bool(others) or name in shards
        with self._changed:
            job.shards = shards if named else {name: shards}
            self._changed.notify()

    def receive(self, transfer: int, microbatch: int | None) -> Shards:
        """Wait for the shards of this process.

        Raises:
            TransferError: Another process failed, or is gone.
        """
        (found,) = self.receive_all(transfer, microbatch).values()
        return found

    def receive_all(self, transfer: int, microbatch: int | None) -> Mapping[str, Shards]:
        """The same where a transfer has several tensors: by name."""
        job = self._jobs[transfer, microbatch]
        job.is_done.wait()
        if job.received is None:
            assert self._error is not None
            raise self._error
        received: Mapping[str, Shards] = job.received
        return received

    def _work(self) -> None:
        open_: list[crossmesh.Execution | None] = [None] * len(self._lanes)
        nap_s = _SHORTEST_NAP_S
        while True:
            with self._changed:
                while not any(queue and queue[0].shards is not None for queue in self._queues):
                    self._changed.wait()
            try:
                moved = [self._advance(lane, open_) for lane in range(len(self._lanes))]
            except Exception as error:  # it crosses to the thread that waits, which raises it
                self._error = error
                for job in list(self._jobs.values()):
                    job.is_done.set()
                return
            if any(moved):
                nap_s = _SHORTEST_NAP_S
            else:
                time.sleep(nap_s)
                nap_s = min(2 * nap_s, _LONGEST_NAP_S)

    def _advance(self, lane: int, open_: list[crossmesh.Execution | None]) -> bool:
        """Step the first message of a lane; False if there was nothing but to wait."""
        queue = self._queues[lane]
        if not queue or queue[0].shards is None:
            return False
        job = queue[0]
        execution = open_[lane]
        if execution is None:
            execution = open_[lane] = crossmesh.Execution(
                job.plan, job.shards, self._lanes[lane][1], window=4, deadline_s=math.inf
            )
        moved = False
        while execution.step():
            moved = True
        if execution.done:
            job.received = execution.result
            with self._changed:
                queue.popleft()
            open_[lane] = None
            job.shards = None
            job.is_done.set()
            return True
        return moved


def crossmesh_mpi() -> Any:
    """The MPI transport of crossmesh, which needs its extra `mpi`."""
    import crossmesh.mpi

    return crossmesh.mpi
