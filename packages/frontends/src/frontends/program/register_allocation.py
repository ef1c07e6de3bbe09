"""Bind instructions to an engine: each becomes a call on numbered registers.

A value's register follows from its stage, slot and microbatch, so nothing is looked up by name
while a step runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import crossmesh
import numpy as np
from shardspec import Mesh

from frontends.base.present import present
from frontends.plan.plan_fields import Stored, Transfer
from frontends.program.instructions import (
    Free,
    Instruction,
    Keep,
    Key,
    Load,
    Receive,
    Run,
    Send,
    Zero,
    freed_after,
    makes,
    uses,
)
from frontends.program.program import LoweredPlan

Registers = list[Any]

BoundInstruction = Callable[[Registers], None]

_BY_MAIL = "values for another process are sent through a mailbox"

Shards = Mapping[int, np.ndarray[Any, Any]]
"""By id of a device of this process, its shard of a value."""


class Engine(Protocol):
    """Executes instructions: a framework's compiled programs, and its values on devices.

    Each method is called before the first step, and returns a function that every step calls.
    """

    def processes(self, mesh: Mesh) -> frozenset[int]:
        """The processes that have devices of a mesh."""

    def loader(self, stage: int, slot: Stored, microbatch: int) -> Callable[[Any], Any]:
        """Returns a function from the caller's batch argument to a microbatch in its layout."""

    def zeros(self, chunk: int) -> Callable[[], Sequence[Any]]:
        """Returns a function that makes zero-initialised totals of a chunk."""

    def program(self, chunk: int) -> Callable[[list[Any]], Sequence[Any]]:
        """Returns a function from a chunk's totals and reads to its new totals and its writes.

        The operands are in a list that the function may empty.
        """

    def sharder(self, stage: int, slot: Stored) -> Callable[[Any], Shards]:
        """Returns a function from a value to this process's shards of it, without a copy."""

    def assembler(self, stage: int, slot: Stored) -> Callable[[Shards], Any]:
        """Returns a function from this process's shards to the value."""

    def mover(self, transfer: Transfer) -> Callable[[Any], Any] | None:
        """Returns a function from a value to the same value on the destination stage.

        None if crossmesh has to transfer it. This is called only for transfers between devices of
        this process.
        """


class Mail(Protocol):
    """Transfers between processes. Transfer and microbatch identify a message."""

    def send(self, transfer: int, microbatch: int | None, shards: Shards) -> None:
        """Begin to send the shards of this process, without waiting."""

    def receive(self, transfer: int, microbatch: int | None) -> Shards:
        """Wait for the shards that this process receives."""


def find_dying(program: LoweredPlan, owned: Iterable[Key] = ()) -> dict[int, frozenset[int]]:
    """By chunk, the indices of reads that are freed after every run of the chunk.

    Only values that programs computed count, and those in `owned`, which are ours from the start. A
    value that was loaded or received may share its memory with others.
    """
    live: set[Key] = set()
    ours = set(owned)
    dying_of: dict[int, frozenset[int]] = {}
    plan, chunks = program.plan, program.chunks
    for index, item in enumerate(program.instructions):
        if isinstance(item, Run):
            freed = freed_after(program.instructions, index)
            keys = [_where(item, slot, live) for slot in chunks[item.chunk].reads]
            dying = frozenset(i for i, key in enumerate(keys) if key in freed and key in ours)
            dying_of[item.chunk] = dying_of.get(item.chunk, dying) & dying
        for key in makes(item, plan, chunks):
            live.add(key)
            if isinstance(item, Run | Zero | Keep):
                ours.add(key)
            else:
                ours.discard(key)
        for slot, is_removed in uses(item, plan, chunks):
            if is_removed:
                live.discard((item.stage, slot, item.microbatch))
    return dying_of


def _where(item: Instruction, slot: Stored, live: set[Key]) -> Key:
    """The value of the instruction's microbatch if it is live, else the one of the whole step."""
    key = (item.stage, slot, item.microbatch)
    return key if key in live else (item.stage, slot, None)


class Binder:
    """Turns instructions into calls.

    Args:
        program: The lowered plan to execute.
        engine: The engine of the framework.
        dying: By chunk, the indices of its reads that nothing needs after it; see `find_dying`.
        planned: By transfer, how it goes from device to device.
        mail: Transfers between processes; None if there is only one process.
    """

    def __init__(
        self,
        program: LoweredPlan,
        engine: Engine,
        dying: Mapping[int, frozenset[int]],
        planned: Sequence[crossmesh.TransferPlan],
        mail: Mail | None,
    ) -> None:
        self._plan, self._chunks = program.plan, program.chunks
        self._instructions, self._engine, self._dying = program.instructions, engine, dying
        self._planned, self._mail = planned, mail
        self.registers: dict[object, int] = {}
        """By key, the number of its register; the key of a batch argument is ("batch", name)."""

        self._live: set[Key] = set()
        self._local: dict[int, crossmesh.LocalTransport] = {}

    def register(self, key: object) -> int:
        """The register of a key."""
        return self.registers.setdefault(key, len(self.registers))

    def bind_all(self, is_local: Mapping[int, bool]) -> list[tuple[int, BoundInstruction]]:
        """The calls of this process's stages, each with its index in the order of all processes."""
        return [
            (place, self.bind(item))
            for place, item in enumerate(self._instructions)
            if is_local[item.stage]
        ]

    def bind(self, item: Instruction) -> BoundInstruction:
        """The call that executes an instruction. Instructions have to be bound in their order."""
        call: BoundInstruction
        match item:
            case Load():
                call = self._load(item)
            case Zero():
                call = self._zero(item)
            case Run():
                call = self._run(item)
            case Send():
                call = self._send(item)
            case Receive():
                call = self._receive(item)
            case Keep():
                call = self._keep(item)
            case Free():
                call = self._free(item)
        self._live.update(makes(item, self._plan, self._chunks))
        for slot, is_removed in uses(item, self._plan, self._chunks):
            if is_removed:
                self._live.discard((item.stage, slot, item.microbatch))
        return call

    def _load(self, item: Load) -> BoundInstruction:
        batch = self.register(("batch", item.slot.value))
        loaded = self.register((item.stage, item.slot, item.microbatch))
        load = self._engine.loader(item.stage, item.slot, item.microbatch or 0)
        return lambda values: values.__setitem__(loaded, load(values[batch]))

    def _zero(self, item: Zero) -> BoundInstruction:
        chunk = self._chunks[item.chunk]
        make = self._engine.zeros(item.chunk)
        totals = [self.register((item.stage, slot, None)) for slot in chunk.totals]

        def zero(values: Registers) -> None:
            for i, result in zip(totals, make(), strict=True):
                values[i] = result

        return zero

    def _run(self, item: Run) -> BoundInstruction:
        chunk, program = self._chunks[item.chunk], self._engine.program(item.chunk)
        totals = [self.register((item.stage, slot, None)) for slot in chunk.totals]
        reads = [self.register(_where(item, slot, self._live)) for slot in chunk.reads]
        writes = [self.register((item.stage, slot, item.microbatch)) for slot in chunk.writes]
        sources, destinations = (*totals, *reads), (*totals, *writes)
        dying = [reads[position] for position in self._dying.get(item.chunk, ())]

        def run(values: Registers) -> None:
            operands = [values[i] for i in sources]
            for i in dying:  # `operands` holds the only reference, which the program may drop
                values[i] = None
            results = program(operands)
            for i, result in zip(destinations, results, strict=True):
                values[i] = result

        return run

    def _is_local(self, index: int) -> bool:
        """Whether a transfer stays in this process."""
        transfer, stages = self._plan.transfers[index], self._plan.stages
        ends = (stages[transfer.source].mesh, stages[transfer.destination].mesh)
        return len(frozenset[int]().union(*map(self._engine.processes, ends))) == 1

    def _send(self, item: Send) -> BoundInstruction:
        transfer = self._plan.transfers[item.transfer]
        slot = Stored(transfer.value, transfer.src_spec)
        sent = self.register(_where(item, slot, self._live))
        shards = self._engine.sharder(item.stage, slot)
        index, microbatch = item.transfer, item.microbatch
        if self._is_local(index):
            under_way = self.register(("mail", index, microbatch))
            move = self._engine.mover(transfer)
            if move is not None:
                return lambda values: values.__setitem__(under_way, move(values[sent]))
            if index not in self._local:
                self._local[index] = crossmesh.LocalTransport(self._planned[index], share=True)
            carry = self._local[index]

            def send(values: Registers) -> None:
                values[under_way] = carry(shards(values[sent]))

            return send
        post = present(self._mail, _BY_MAIL).send
        return lambda values: post(index, microbatch, shards(values[sent]))

    def _receive(self, item: Receive) -> BoundInstruction:
        transfer = self._plan.transfers[item.transfer]
        slot = Stored(transfer.value, transfer.dst_spec)
        received = self.register((item.stage, slot, item.microbatch))
        assemble = self._engine.assembler(item.stage, slot)
        index, microbatch = item.transfer, item.microbatch
        if self._is_local(index):
            under_way = self.register(("mail", index, microbatch))
            is_moved = self._engine.mover(transfer) is not None

            def receive(values: Registers) -> None:
                arrived = values[under_way]
                values[received] = arrived if is_moved else assemble(arrived)
                values[under_way] = None

            return receive
        fetch = present(self._mail, _BY_MAIL).receive

        def receive_mail(values: Registers) -> None:
            values[received] = assemble(fetch(index, microbatch))

        return receive_mail

    def _keep(self, item: Keep) -> BoundInstruction:
        moves = [
            (
                self.register((item.stage, slot, item.microbatch)),
                self.register((item.stage, slot, None)),
            )
            for slot in item.slots
        ]

        def keep(values: Registers) -> None:
            for src, dst in moves:
                values[dst], values[src] = values[src], None

        return keep

    def _free(self, item: Free) -> BoundInstruction:
        freed = [self.register((item.stage, slot, item.microbatch)) for slot in item.slots]

        def free(values: Registers) -> None:
            for i in freed:
                values[i] = None

        return free
