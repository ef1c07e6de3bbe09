"""Transfer plans as values: which device sends which slice of a tensor to whom, in which order."""

import hashlib
import math
from dataclasses import dataclass
from typing import Literal

from shardspec import Layout

from crossmesh.route import Route

Strategy = Literal["broadcast", "send_recv"]
"""How a slice reaches several receivers: passed on from one to the next, or sent to each."""


@dataclass(frozen=True, slots=True)
class UnitTask:
    """One slice of the tensor on its way from one device to others."""

    index: int
    """Position in the order of the plan."""
    slices: tuple[tuple[int, int], ...]
    """Start and stop in each dim of the whole tensor."""
    senders: tuple[int, ...]
    """All devices that hold the slice, sorted."""
    sender: int
    """The one of them that sends it."""
    receivers: tuple[int, ...]
    """Devices that get it, sorted; those among `senders` keep their own copy."""

    @property
    def extent(self) -> tuple[int, ...]:
        """Shape of the slice."""
        return tuple(stop - start for start, stop in self.slices)

    @property
    def recipients(self) -> tuple[int, ...]:
        """The receivers that do not hold the slice already."""
        return tuple(device for device in self.receivers if device not in self.senders)

    def n_bytes(self, itemsize: int) -> int:
        """Bytes of the slice."""
        return math.prod(self.extent) * itemsize

    def __str__(self) -> str:
        slices = ", ".join(f"{start}:{stop}" for start, stop in self.slices)
        return f"{self.index}: [{slices}] {self.sender} -> {', '.join(map(str, self.receivers))}"


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """How a tensor gets from one layout to another; `plan_transfer` makes it."""

    src: Layout
    """Where the tensor is."""
    dst: Layout
    """Where it shall be."""
    itemsize: int
    """Bytes of an element."""
    strategy: Strategy
    """How a slice reaches several receivers."""
    hosts: tuple[tuple[int, int], ...]
    """(device, host) of every device of both meshes, sorted."""
    tasks: tuple[UnitTask, ...]
    """In the order in which they start."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole tensor."""
        return self.src.shape

    @property
    def routes(self) -> tuple[Route, ...]:
        """The hosts that each task passes."""
        host_of = dict(self.hosts)
        return tuple(
            Route.from_devices(task.sender, task.receivers, host_of) for task in self.tasks
        )

    @property
    def sent_bytes(self) -> tuple[tuple[int, int], ...]:
        """(host, bytes it sends to other hosts), sorted: the loads that Eq. 4 balances.

        What a host only passes on inside a broadcast counts for the host that sent it first.
        """
        sent = dict.fromkeys(sorted({host for _, host in self.hosts}), 0)
        for task, route in zip(self.tasks, self.routes, strict=True):
            if route.receiver_hosts:
                sent[route.sender_host] += task.n_bytes(self.itemsize)
        return tuple(sent.items())

    @property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of everything that decides what is sent.

        Ranks that plan for themselves compare it before they communicate. Names of mesh axes do
        not enter.
        """
        layouts = [
            (layout.mesh.shape, tuple(layout.mesh.device_ids), str(layout.spec), layout.rules)
            for layout in (self.src, self.dst)
        ]
        tasks = [(task.slices, task.sender, task.receivers) for task in self.tasks]
        content = (self.shape, self.itemsize, self.strategy, layouts, self.hosts, tasks)
        return hashlib.sha256(repr(content).encode()).hexdigest()

    def __str__(self) -> str:
        head = f"{self.src.spec} -> {self.dst.spec} of {self.shape}, {self.strategy}"
        return "\n".join([head, *(f"  {task}" for task in self.tasks)])
