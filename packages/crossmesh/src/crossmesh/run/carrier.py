"""`Carrier`: takes the chunks of a plan through one rank, from source to destination arrays.

A chunk is open from when its receives begin until its sends are complete. Chunks are opened in the
order of the program, while the numbers of open tasks, open chunks and staged bytes are within their
limits. One chunk may always be open, so the first incomplete message of all ranks
(`crossmesh.transfer.messages`) can always get its bytes.

The limit on open chunks keeps the order between the ranks of a host. Without it, a rank that has
nothing to do in the first tasks would send its later ones at once, over the same link of the host.
Broadcasts would then pass down their chains at only a part of the link's rate, one after the other.
"""

import math
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from shardspec import Layout

from crossmesh.base._native import core
from crossmesh.base.reduce import add_to, combine, finish, in_a_row, number_type
from crossmesh.base.task import Piece, UnitTask
from crossmesh.run.channels import Channels, Message
from crossmesh.run.packing import Array, BoxOffsets, Packed
from crossmesh.run.transport import Bytes, Transport
from crossmesh.transfer.arrays import Named
from crossmesh.transfer.messages import MessageChunk, program
from crossmesh.transfer.plan import TransferPlan

Side = Literal["src", "dst"]

OPEN_CHUNKS = 8
"""The most open chunks of a rank, or as many as the window if that is larger: one that arrives, one
that leaves, and the rest for ranks that are late [measured: 12 ranks on emulated hosts, 2026-11-20:
case 7 of Table 2 takes 1.05 of its bound with MPI, and 1.77 without this limit]."""


@dataclass(frozen=True, slots=True)
class _Needs:
    """The memory that a chunk uses on this rank; None stands for a temporary buffer."""

    own: dict[int, Bytes | None]
    """For each device that adds a term or sends the chunk first: its bytes in the source shard."""
    sinks: tuple[Bytes | None, ...]
    """For each leg from another rank: where in a destination shard its bytes arrive."""
    staging_bytes: int
    """Bytes of all temporary buffers."""


class Carrier:
    """The open chunks of one rank.

    Args:
        plan: The plan.
        src: The source shards of this rank's devices.
        dst: Their destination shards, which are written.
        transport: Says which devices belong to this rank.
        channels: The messages to and from the other ranks.
        window: The most tasks that may be open.
        staging_bytes: The most bytes of temporary buffers, if more than one chunk is open.
    """

    def __init__(
        self,
        plan: TransferPlan,
        src: Named,
        dst: Named,
        transport: Transport,
        channels: Channels,
        window: int,
        staging_bytes: int,
    ) -> None:
        self._tensors = plan.tensors
        self._copies = plan.copies
        self._arrays: dict[Side, Named] = {"src": src, "dst": dst}
        self._local = {d for d, rank in transport.rank_of.items() if rank == transport.rank}
        self._channels = channels
        self._window = window
        in_order = plan.order != "all_at_once"
        self._most_chunks = max(window, OPEN_CHUNKS) if in_order else math.inf
        self._most_bytes = staging_bytes
        self._chunks = program(plan, self._local)
        self._next = next(self._chunks, None)
        self._needs: _Needs | None = None
        self.staged_bytes = 0
        """Bytes of the temporary buffers of open chunks."""
        self._open: Counter[int] = Counter()  # open chunks of each task
        self._places: dict[tuple[Side, int, int], BoxOffsets] = {}
        self._packed: dict[int, dict[tuple[Side, int], Packed]] = {}
        self._resumed_by: dict[Message, Generator[Message, None, None]] = {}

    @property
    def done(self) -> bool:
        """Whether all chunks are complete on this rank."""
        return self._next is None and not self._open

    @property
    def open_chunks(self) -> int:
        """The number of open chunks."""
        return self._open.total()

    @property
    def open_tasks(self) -> int:
        """The number of tasks with open chunks."""
        return len(self._open)

    def copy(self) -> None:
        """Do the plan's local copies on this rank's devices."""
        for device, pieces in self._copies:
            if device in self._local:
                sources = self._views("src", device, pieces)
                targets = self._views("dst", device, pieces)
                for source, target in zip(sources, targets, strict=True):
                    start = (0,) * source.ndim
                    core.copy_box(target, start, source.view(target.dtype), start, source.shape)

    def advance(self) -> bool:
        """Continue every chunk that can, and open one more; False if there was nothing to do."""
        completed = self._channels.advance()
        for message in completed:
            if message in self._resumed_by:
                self._resume(self._resumed_by.pop(message))
        return self._open_next() or bool(completed)

    def _open_next(self) -> bool:
        chunk = self._next
        if self.open_chunks >= self._most_chunks:
            return False
        if chunk is None or (
            chunk.task.index not in self._open and len(self._open) >= self._window
        ):
            return False
        needs = self._needs = self._needs or self._needs_of(chunk)
        if self.staged_bytes and self.staged_bytes + needs.staging_bytes > self._most_bytes:
            return False
        self.staged_bytes += needs.staging_bytes
        self._open[chunk.task.index] += 1
        self._next, self._needs = next(self._chunks, None), None
        self._resume(self._carry(chunk, needs))
        return True

    def _resume(self, carried: Generator[Message, None, None]) -> None:
        message = next(carried, None)
        if message is not None:
            self._resumed_by[message] = carried

    def _close(self, task: UnitTask, needs: _Needs) -> None:
        self.staged_bytes -= needs.staging_bytes
        self._open[task.index] -= 1
        if not self._open[task.index]:
            del self._open[task.index]
            if self._next is None or self._next.task is not task:
                self._packed.pop(task.index, None)

    def _needs_of(self, chunk: MessageChunk) -> _Needs:
        task, count = chunk.task, 0
        own: dict[int, Bytes | None] = {}
        for device in self._local.intersection(task.adders):
            own[device] = self._memory("src", chunk, device)
            count += own[device] is None or len(task.terms) > 1
        sinks: list[Bytes | None] = []
        for leg in chunk.legs:
            arrives = leg.receiver in self._local and leg.sender not in self._local
            sinks.append(
                self._memory("dst", chunk, leg.receiver) if arrives and not leg.adds else None
            )
            count += arrives and sinks[-1] is None
        return _Needs(own, tuple(sinks), count * chunk.n_bytes)

    def _carry(self, chunk: MessageChunk, needs: _Needs) -> Generator[Message, None, None]:
        """Take a chunk through this rank; yields each message that it has to wait for."""
        task, (start, _) = chunk.task, chunk.part
        messages = [
            self._begin(Message(chunk, leg, sink))
            for leg, sink in zip(chunk.legs, needs.sinks, strict=True)
        ]
        at = {  # for each device, what it currently has of the chunk
            device: self._read(chunk, device) if memory is None else memory
            for device, memory in needs.own.items()
        }
        sent_here: dict[int, Bytes] = {}
        for number, (leg, message) in enumerate(zip(chunk.legs, messages, strict=True)):
            if leg.receiver not in self._local:
                if message:
                    message.data = at[leg.sender]
                continue
            if message and not message.done:
                yield message
            data = at[leg.sender] if message is None else message.content
            last = number >= len(task.terms) - 2
            if not leg.adds or task.strategy == "signal":
                at[leg.receiver] = data
            elif self._in_a_row(task):
                at[leg.receiver] = self._sum(task, at[leg.receiver], data, last)
            else:
                sent_here[leg.sender] = data
                if last:
                    sent_here[leg.receiver] = at[leg.receiver]
                    at[leg.receiver] = self._combined(task, sent_here)
            arrived = last and leg.receiver in task.receivers and needs.sinks[number] is None
            if arrived and task.strategy != "signal":
                self._ends("dst", task, leg.receiver).write(start, at[leg.receiver])

        for leg, message in zip(chunk.legs, messages, strict=True):
            if message and leg.sender in self._local and not message.done:
                yield message
        self._close(task, needs)

    def _begin(self, message: Message) -> Message | None:
        """Begin to receive a message, or reserve its place among the sends.

        Returns None if both devices are on this rank, or neither is.
        """
        if message.leg.sender in self._local and message.leg.receiver in self._local:
            return None
        if message.leg.sender in self._local:
            self._channels.reserve(message)
        elif message.leg.receiver in self._local:
            if message.data is None:
                message.data = np.empty(message.chunk.n_bytes, np.uint8)
            self._channels.receive(message)
        else:
            return None
        return message

    def _read(self, chunk: MessageChunk, device: int) -> Bytes:
        if chunk.task.strategy == "signal":
            return np.zeros(chunk.n_bytes, np.uint8)
        data = np.empty(chunk.n_bytes, np.uint8)
        self._ends("src", chunk.task, device).read(chunk.part[0], data)
        return data

    def _memory(self, side: Side, chunk: MessageChunk, device: int) -> Bytes | None:
        """The bytes of a chunk in a device's shard, if they lie together there."""
        if chunk.task.strategy == "signal":
            return None
        return self._ends(side, chunk.task, device).memory(*chunk.part)

    def _ends(self, side: Side, task: UnitTask, device: int) -> Packed:
        """The bytes of a task in the shards of a device."""
        of_task = self._packed.setdefault(task.index, {})
        if (side, device) not in of_task:
            of_task[side, device] = Packed(self._views(side, device, task.pieces))
        return of_task[side, device]

    def _views(self, side: Side, device: int, pieces: Iterable[Piece]) -> list[Array]:
        """Views of pieces in the source or destination shards of a device."""
        views = []
        for tensor, box in pieces:
            if (side, tensor, device) not in self._places:
                layout: Layout = getattr(self._tensors[tensor], side)
                self._places[side, tensor, device] = BoxOffsets(layout, device)
            array = self._arrays[side][self._tensors[tensor].name][device]
            at: tuple[Any, ...] = self._places[side, tensor, device].slices(box)
            views.append(np.asarray(array)[*at, ...])  # the ... gives a view for a scalar, too
        return views

    def _in_a_row(self, task: UnitTask) -> bool:
        return in_a_row(task.reduction, self._tensors[task.pieces[0].tensor].dtype)

    def _sum(self, task: UnitTask, own: Bytes, data: Bytes, last: bool) -> Bytes:
        """A device's term combined with the bytes that it received, in a new buffer."""
        dtype = number_type(self._tensors[task.pieces[0].tensor].dtype)
        total = own.copy().view(dtype)
        ((kind, _),) = task.reduction
        add_to(total, data.view(dtype), kind)
        if last:
            finish(total, task.reduction)
        return total.view(np.uint8)

    def _combined(self, task: UnitTask, terms: Mapping[int, Bytes]) -> Bytes:
        dtype = number_type(self._tensors[task.pieces[0].tensor].dtype)
        in_order = [terms[device].view(dtype) for device in task.senders]
        return combine(in_order, task.reduction).view(np.uint8)
