"""`program`: a plan as messages, chunk by chunk, in one order that all ranks follow.

The bytes of a task are cut into chunks, and each chunk passes from device to device along a route
(Zhuang et al., MLSys 2023, section 3.1). Strategies differ only in their chunks and routes:

    strategy                chunks                      route of a chunk
    send_recv, broadcast    `n_chunks` equal chunks     adders, then all receivers
    all-gathers             each receiver's share       adders, then the ring from that receiver on
    signal                  one byte                    adders, then all receivers

No rank waits forever: all ranks begin messages in the order of the program, and a message depends
on earlier messages only. Consider the first message that is not complete: both its ranks have begun
it and have what it needs, so it completes. Transports only have to keep the order of messages
between two ranks.
"""

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from crossmesh.base.reduce import in_a_row
from crossmesh.base.task import UnitTask
from crossmesh.base.tensor import Tensor
from crossmesh.transfer.plan import TransferPlan


class Leg(NamedTuple):
    """A message: one chunk from one device to another."""

    sender: int
    receiver: int
    adds: bool
    """Whether the receiver combines the chunk with its own term; if not, it keeps the chunk or
    passes it on."""


@dataclass(frozen=True, slots=True)
class MessageChunk:
    """A part of a task's bytes, and its route from device to device."""

    task: UnitTask
    part: tuple[int, int]
    """Its bytes among those of the packed pieces: start and stop. Where terms are added, both are
    between elements."""
    legs: tuple[Leg, ...]
    """Its messages, in order: a device can send once all earlier legs that lead to it have
    arrived."""

    @property
    def n_bytes(self) -> int:
        """The bytes of each of its messages."""
        return self.part[1] - self.part[0]

    def __str__(self) -> str:
        return f"task {self.task.index} bytes {self.part[0]}:{self.part[1]}"


def program(plan: TransferPlan, devices: Collection[int] | None = None) -> Iterator[MessageChunk]:
    """Yield the chunks of a plan in the order in which all ranks process them.

    Args:
        plan: The plan.
        devices: Yield only the chunks that one of these devices sends or receives. None: all.

    Examples:
        >>> from shardspec import Layout, Mesh, Spec
        >>> from crossmesh import plan
        >>> src = Layout((4,), Mesh((1,), ("x",), (0,)), Spec.parse("R"))
        >>> dst = Layout((4,), Mesh((2,), ("x",), (1, 2)), Spec.parse("R"))
        >>> for chunk in program(plan(src, dst, "int8", chunks=2, chunk_bytes=1, split=False)):
        ...     print(chunk, *(f"{leg.sender}->{leg.receiver}" for leg in chunk.legs))
        task 0 bytes 0:2 0->1 1->2
        task 0 bytes 2:4 0->1 1->2
    """
    for task in plan.tasks:
        if devices is None or not set(task.path).isdisjoint(devices):
            for chunk in _chunks(task, plan.tensors):
                if devices is None or any(
                    leg.sender in devices or leg.receiver in devices for leg in chunk.legs
                ):
                    yield chunk


def _chunks(task: UnitTask, tensors: Sequence[Tensor]) -> Iterator[MessageChunk]:
    start, stop = task.part
    to_adders, to_receivers = task.legs(
        in_a_row=in_a_row(task.reduction, tensors[task.pieces[0].tensor].dtype)
    )
    adding = tuple(Leg(a, b, adds=True) for a, b in to_adders)
    if task.strategy == "signal":
        yield MessageChunk(
            task, (start, start + 1), adding + _chain((task.sender, *task.followers))
        )
    elif task.strategy in ("local_allgather", "global_allgather") and task.followers:
        # Cut the shares as well, so that chunks are about as long as with other strategies.
        n_chunks = math.ceil(task.n_chunks / len(task.followers))
        for i, share in enumerate(_cut(start, stop, len(task.followers), _unit(task, tensors))):
            ring = task.followers[i:] + task.followers[:i]
            legs = adding + _chain((task.sender, *ring))
            for part in _cut(*share, n_chunks, _unit(task, tensors)):
                yield MessageChunk(task, part, legs)
    else:
        legs = adding + tuple(Leg(a, b, adds=False) for a, b in to_receivers)
        for part in _cut(start, stop, task.n_chunks, _unit(task, tensors)):
            yield MessageChunk(task, part, legs)


def _chain(devices: Sequence[int]) -> tuple[Leg, ...]:
    return tuple(Leg(a, b, adds=False) for a, b in itertools.pairwise(devices))


def _unit(task: UnitTask, tensors: Sequence[Tensor]) -> int:
    """The bytes that chunk lengths are a multiple of.

    Terms that are added have one dtype, so their chunks consist of whole elements. Where elements
    of several sizes are packed, a chunk may end within an element, which is harmless for copies.
    """
    return math.lcm(*(tensors[piece.tensor].item_bytes for piece in task.pieces))


def _cut(start: int, stop: int, n: int, unit: int) -> Iterator[tuple[int, int]]:
    """At most `n` parts, none empty, as equal as multiples of `unit` allow."""
    units = -(-(stop - start) // unit)
    borders = [min(start + units * i // n * unit, stop) for i in range(n + 1)]
    return ((a, b) for a, b in itertools.pairwise(borders) if a < b)
