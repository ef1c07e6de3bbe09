"""Carry values between processes while they compute: crossmesh's executions, in a thread.

Between every two stages messages go one after the other, in the order in which the plan sends them.
All processes know that order, so who only receives begins at once, and a message can arrive while
its receiver computes. One thread steps all that is open: frameworks compute without Python's lock.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import crossmesh
from shardspec import Mesh

from frontends.binding import Shards
from frontends.instructions import Instruction, Send
from frontends.plan import Plan

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


Connect = Callable[[int, Lane], Any]
"""From a lane of this process, and its number, to the transport of crossmesh that connects it."""


def lanes_of(
    plan: Plan,
    instructions: Sequence[Instruction],
    planned: Sequence[crossmesh.TransferPlan],
    processes: Callable[[Mesh], frozenset[int]],
) -> list[Lane]:
    """The lanes of a plan: one for every two stages that exchange something between processes.

    Args:
        plan: What runs.
        instructions: Of all processes, in their order.
        planned: How each transfer goes from device to device.
        processes: Those that have devices of a mesh.
    """
    messages: defaultdict[tuple[int, int], list[Message]] = defaultdict(list)
    for item in instructions:
        if isinstance(item, Send):
            transfer = plan.transfers[item.transfer]
            messages[transfer.source, transfer.destination].append((item.transfer, item.microbatch))
    lanes = []
    for between, sent in messages.items():
        ends = [processes(plan.stages[stage].mesh) for stage in between]
        together = tuple(sorted(frozenset[int]().union(*ends)))
        if len(together) > 1:
            plans = {index: planned[index] for index, _ in sent}
            lanes.append(Lane(together, tuple(sent), plans, ends[0]))
    return lanes


class Courier:
    """This process's part of all lanes.

    Args:
        lanes: Those of all processes, in an order that is the same everywhere.
        me: This process.
        connect: Connects the processes of a lane.
    """

    def __init__(self, lanes: Sequence[Lane], me: int, connect: Connect) -> None:
        mine = [(number, lane) for number, lane in enumerate(lanes) if me in lane.processes]
        self._lanes = [(lane, connect(number, lane)) for number, lane in mine]
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
