"""`Carrier`: takes the chunks of a plan through one rank, from its arrays, to its arrays.

A chunk is open from when its receives are begun until its sends are complete. Chunks are opened in
the order of the program, as long as few enough tasks, chunks and bytes are; one chunk always may
be, so that the first incomplete message of all (`program.py`) is never kept from its bytes.

The bound on chunks is what keeps the order between ranks of one host: one that has nothing to do in
the first tasks would else send its later ones at once, and both share the host's link. Broadcasts
then pass down their chains at a part of its rate, one after the other.
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
"""Of a rank, or as many as tasks: one on its way in, one out, the rest for ranks that are late
[measured: 12 ranks on emulated hosts, 2026-11-20: case 7 of Table 2 takes 1.05 of its bound with
MPI, and 1.77 without this]."""


@dataclass(frozen=True, slots=True)
class _Needs:
    """Where the bytes of a chunk lie on this rank; None: in memory of their own meanwhile."""

    own: dict[int, Bytes | None]
    """What each device adds, or sends first."""
    sinks: tuple[Bytes | None, ...]
    """Where each leg's bytes arrive that come from another rank."""
    staging_bytes: int


class Carrier:
    """The open chunks of one rank.

    Args:
        plan: What goes where.
        src: The source shards of this rank's devices.
        dst: Their destination shards, which are written.
        transport: Which devices are this rank's.
        channels: To and from the other ranks.
        window: How many tasks may be open.
        staging_bytes: How much memory open chunks may have, if they are more than one.
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
        """Memory that open chunks have besides the shards."""
        self._open: Counter[int] = Counter()  # chunks of each task
        self._places: dict[tuple[Side, int, int], BoxOffsets] = {}
        self._packed: dict[int, dict[tuple[Side, int], Packed]] = {}
        self._resumed_by: dict[Message, Generator[Message, None, None]] = {}

    @property
    def done(self) -> bool:
        """Whether all chunks are through."""
        return self._next is None and not self._open

    @property
    def open_chunks(self) -> int:
        """How many chunks are open."""
        return self._open.total()

    @property
    def open_tasks(self) -> int:
        """How many tasks have open chunks."""
        return len(self._open)

    def copy(self) -> None:
        """Copy what this rank's devices hold already and keep."""
        for device, pieces in self._copies:
            if device in self._local:
                sources = self._views("src", device, pieces)
                targets = self._views("dst", device, pieces)
                for source, target in zip(sources, targets, strict=True):
                    start = (0,) * source.ndim
                    core.copy_box(target, start, source.view(target.dtype), start, source.shape)

    def advance(self) -> bool:
        """Go on with every chunk that can, and open one; whether there was anything to do."""
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
        """Take a chunk through this rank; yields the message that it waits for."""
        task, (start, _) = chunk.task, chunk.part
        messages = [
            self._begin(Message(chunk, leg, sink))
            for leg, sink in zip(chunk.legs, needs.sinks, strict=True)
        ]
        at = {  # what each device has of the chunk now
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
        """Begin to receive, or take a place among what is sent; None if it stays on this rank."""
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
        """A device's own bytes of a chunk, where they lie together."""
        if chunk.task.strategy == "signal":
            return None
        return self._ends(side, chunk.task, device).memory(*chunk.part)

    def _ends(self, side: Side, task: UnitTask, device: int) -> Packed:
        """A task's bytes in the shards of a device."""
        of_task = self._packed.setdefault(task.index, {})
        if (side, device) not in of_task:
            of_task[side, device] = Packed(self._views(side, device, task.pieces))
        return of_task[side, device]

    def _views(self, side: Side, device: int, pieces: Iterable[Piece]) -> list[Array]:
        """Pieces as they lie in the source or destination shards of a device."""
        views = []
        for tensor, box in pieces:
            if (side, tensor, device) not in self._places:
                layout: Layout = getattr(self._tensors[tensor], side)
                self._places[side, tensor, device] = BoxOffsets(layout, device)
            array = self._arrays[side][self._tensors[tensor].name][device]
            at: tuple[Any, ...] = self._places[side, tensor, device].slices(box)
            views.append(np.asarray(array)[*at, ...])  # a view, also of a scalar
        return views

    def _in_a_row(self, task: UnitTask) -> bool:
        return in_a_row(task.reduction, self._tensors[task.pieces[0].tensor].dtype)

    def _sum(self, task: UnitTask, own: Bytes, data: Bytes, last: bool) -> Bytes:
        """A device's own term combined with what it got; as bytes of its own."""
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
