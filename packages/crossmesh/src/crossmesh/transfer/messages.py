"""`messages`: a plan as messages, chunk by chunk, in one order that all ranks follow.

A task's bytes are cut into chunks, and each chunk passes from device to device along a route
(Zhuang et al., MLSys 2023, section 3.1). Strategies differ in nothing but chunks and routes:

    send_recv, broadcast    `n_chunks` equal chunks     adders, then all receivers
    all-gathers             each receiver's share       adders, then the ring from that receiver on
    signal                  one byte                    adders, then all receivers

Why nothing waits for ever: all ranks begin messages in the order of the program, and a message
depends on earlier ones only. So whatever is the first incomplete message, both its ranks have begun
it and have what it needs; transports only have to keep the order between two ranks.
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
    """A message: one chunk from a device to another."""

    sender: int
    receiver: int
    adds: bool
    """Whether the receiver combines it with its own term, rather than keep it or pass it on."""


@dataclass(frozen=True, slots=True)
class MessageChunk:
    """A part of a task's bytes and its way from device to device."""

    task: UnitTask
    part: tuple[int, int]
    """Bytes of the packed pieces: start and stop. Where terms are added, between elements."""
    legs: tuple[Leg, ...]
    """In order: a device can send once all earlier legs that lead to it have arrived."""

    @property
    def n_bytes(self) -> int:
        """Bytes of each of its messages."""
        return self.part[1] - self.part[0]

    def __str__(self) -> str:
        return f"task {self.task.index} bytes {self.part[0]}:{self.part[1]}"


def program(plan: TransferPlan, devices: Collection[int] | None = None) -> Iterator[MessageChunk]:
    """The chunks of a plan in the order in which all ranks take them up, made one at a time.

    Args:
        plan: What is sent.
        devices: Only chunks that some of these devices send or receive. None: all.

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
    together, passing = task.legs(
        in_a_row=in_a_row(task.reduction, tensors[task.pieces[0].tensor].dtype)
    )
    adding = tuple(Leg(a, b, adds=True) for a, b in together)
    if task.strategy == "signal":
        yield MessageChunk(
            task, (start, start + 1), adding + _chain((task.sender, *task.followers))
        )
    elif task.strategy in ("local_allgather", "global_allgather") and task.followers:
        # Shares are cut, too, so that as many bytes are on their way at a time.
        n_chunks = math.ceil(task.n_chunks / len(task.followers))
        for i, share in enumerate(_cut(start, stop, len(task.followers), _unit(task, tensors))):
            ring = task.followers[i:] + task.followers[:i]
            legs = adding + _chain((task.sender, *ring))
            for part in _cut(*share, n_chunks, _unit(task, tensors)):
                yield MessageChunk(task, part, legs)
    else:
        legs = adding + tuple(Leg(a, b, adds=False) for a, b in passing)
        for part in _cut(start, stop, task.n_chunks, _unit(task, tensors)):
            yield MessageChunk(task, part, legs)


def _chain(devices: Sequence[int]) -> tuple[Leg, ...]:
    return tuple(Leg(a, b, adds=False) for a, b in itertools.pairwise(devices))


def _unit(task: UnitTask, tensors: Sequence[Tensor]) -> int:
    """Chunks are multiples of this many bytes; what is added is of one type, so of whole elements.

    Where elements of several sizes are packed, borders may cut some, which copies do not mind.
    """
    return math.lcm(*(tensors[piece.tensor].item_bytes for piece in task.pieces))


def _cut(start: int, stop: int, n: int, unit: int) -> Iterator[tuple[int, int]]:
    """Up to `n` parts, none empty, as equal as multiples of `unit` allow."""
    units = -(-(stop - start) // unit)
    borders = [min(start + units * i // n * unit, stop) for i in range(n + 1)]
    return ((a, b) for a, b in itertools.pairwise(borders) if a < b)
