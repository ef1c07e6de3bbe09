"""Bind instructions to what executes them: each becomes a call on numbered registers.

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
from frontends.program.program import Program

Registers = list[Any]

Call = Callable[[Registers], None]

_BY_MAIL = "what goes to another process goes by mail"

Shards = Mapping[int, np.ndarray[Any, Any]]
"""What devices of this process have of a value, by device id."""


class Engine(Protocol):
    """What executes instructions: a framework's programs, and values as they lie on devices.

    All is asked for once, before the first step; what is returned is called in every step.
    """

    def processes(self, mesh: Mesh) -> frozenset[int]:
        """The processes that have devices of a mesh."""

    def loader(self, stage: int, slot: Stored, microbatch: int) -> Callable[[Any], Any]:
        """From an argument that is cut, as the caller gave it, to a microbatch in its layout."""

    def zeros(self, chunk: int) -> Callable[[], Sequence[Any]]:
        """Makes the totals of a chunk, which are nothing yet."""

    def program(self, chunk: int) -> Callable[[list[Any]], Sequence[Any]]:
        """From totals and reads of a chunk, a list that may be emptied, to totals and writes."""

    def sharder(self, stage: int, slot: Stored) -> Callable[[Any], Shards]:
        """From a value to the shards that this process has, without a copy."""

    def assembler(self, stage: int, slot: Stored) -> Callable[[Shards], Any]:
        """From the shards that this process has to the value."""

    def mover(self, transfer: Transfer) -> Callable[[Any], Any] | None:
        """From a value to the same on the other stage; None if crossmesh has to carry it.

        It is asked for transfers between devices of this process only.
        """


class Mail(Protocol):
    """Carries transfers between processes; messages are told apart by transfer and microbatch."""

    def send(self, transfer: int, microbatch: int | None, shards: Shards) -> None:
        """Begin to send what this process has, without waiting."""

    def receive(self, transfer: int, microbatch: int | None) -> Shards:
        """Wait for the shards of this process."""


def find_dying(program: Program, owned: Iterable[Key] = ()) -> dict[int, frozenset[int]]:
    """By chunk, the positions of the reads that nothing reads later, whenever it runs.

    Only what programs made counts, and what is `owned` from the start: what was loaded or received
    may share its memory with others.
    """
    made: set[Key] = set()
    ours = set(owned)
    found: dict[int, frozenset[int]] = {}
    plan, chunks = program.plan, program.chunks
    for index, item in enumerate(program.instructions):
        if isinstance(item, Run):
            gone = freed_after(program.instructions, index)
            keys = [_where(item, slot, made) for slot in chunks[item.chunk].reads]
            dying = frozenset(i for i, key in enumerate(keys) if key in gone and key in ours)
            found[item.chunk] = found.get(item.chunk, dying) & dying
        for key in makes(item, plan, chunks):
            made.add(key)
            if isinstance(item, Run | Zero | Keep):
                ours.add(key)
            else:
                ours.discard(key)
        for slot, taken in uses(item, plan, chunks):
            if taken:
                made.discard((item.stage, slot, item.microbatch))
    return found


def _where(item: Instruction, slot: Stored, made: set[Key]) -> Key:
    """A value of the microbatch if there is one, else the one that lives all step long."""
    key = (item.stage, slot, item.microbatch)
    return key if key in made else (item.stage, slot, None)


class Binder:
    """Turns instructions into calls.

    Args:
        program: What is to be executed.
        engine: Of the framework.
        dying: By chunk, which of its reads nobody needs after it, as `find_dying` says.
        planned: How each transfer goes from device to device.
        mail: Carries transfers between processes; None if there is one process only.
    """

    def __init__(
        self,
        program: Program,
        engine: Engine,
        dying: Mapping[int, frozenset[int]],
        planned: Sequence[crossmesh.TransferPlan],
        mail: Mail | None,
    ) -> None:
        self._plan, self._chunks = program.plan, program.chunks
        self._instructions, self._engine, self._dying = program.instructions, engine, dying
        self._planned, self._mail = planned, mail
        self.registers: dict[object, int] = {}
        """The number of a key's register; of ("batch", name) for an argument that is cut."""

        self._made: set[Key] = set()
        self._local: dict[int, crossmesh.LocalTransport] = {}

    def register(self, key: object) -> int:
        """The register of a key."""
        return self.registers.setdefault(key, len(self.registers))

    def bind_all(self, is_local: Mapping[int, bool]) -> list[tuple[int, Call]]:
        """The calls of this process's stages, each with its place in the order of all processes."""
        return [
            (place, self.bind(item))
            for place, item in enumerate(self._instructions)
            if is_local[item.stage]
        ]

    def bind(self, item: Instruction) -> Call:
        """The call that executes an instruction; instructions are bound in their order."""
        call: Call
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
        self._made.update(makes(item, self._plan, self._chunks))
        for slot, taken in uses(item, self._plan, self._chunks):
            if taken:
                self._made.discard((item.stage, slot, item.microbatch))
        return call

    def _load(self, item: Load) -> Call:
        batch = self.register(("batch", item.slot.value))
        made = self.register((item.stage, item.slot, item.microbatch))
        load = self._engine.loader(item.stage, item.slot, item.microbatch or 0)
        return lambda values: values.__setitem__(made, load(values[batch]))

    def _zero(self, item: Zero) -> Call:
        chunk = self._chunks[item.chunk]
        make = self._engine.zeros(item.chunk)
        totals = [self.register((item.stage, slot, None)) for slot in chunk.totals]

        def zero(values: Registers) -> None:
            for i, result in zip(totals, make(), strict=True):
                values[i] = result

        return zero

    def _run(self, item: Run) -> Call:
        chunk, program = self._chunks[item.chunk], self._engine.program(item.chunk)
        totals = [self.register((item.stage, slot, None)) for slot in chunk.totals]
        reads = [self.register(_where(item, slot, self._made)) for slot in chunk.reads]
        writes = [self.register((item.stage, slot, item.microbatch)) for slot in chunk.writes]
        taken, given = (*totals, *reads), (*totals, *writes)
        gone = [reads[position] for position in self._dying.get(item.chunk, ())]

        def run(values: Registers) -> None:
            operands = [values[i] for i in taken]
            for i in gone:  # now the program alone has them, and lets them go
                values[i] = None
            results = program(operands)
            for i, result in zip(given, results, strict=True):
                values[i] = result

        return run

    def _is_local(self, index: int) -> bool:
        """Whether a transfer stays in this process."""
        transfer, stages = self._plan.transfers[index], self._plan.stages
        ends = (stages[transfer.source].mesh, stages[transfer.destination].mesh)
        return len(frozenset[int]().union(*map(self._engine.processes, ends))) == 1

    def _send(self, item: Send) -> Call:
        transfer = self._plan.transfers[item.transfer]
        slot = Stored(transfer.value, transfer.src_spec)
        sent = self.register(_where(item, slot, self._made))
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

    def _receive(self, item: Receive) -> Call:
        transfer = self._plan.transfers[item.transfer]
        slot = Stored(transfer.value, transfer.dst_spec)
        made = self.register((item.stage, slot, item.microbatch))
        assemble = self._engine.assembler(item.stage, slot)
        index, microbatch = item.transfer, item.microbatch
        if self._is_local(index):
            under_way = self.register(("mail", index, microbatch))
            is_moved = self._engine.mover(transfer) is not None

            def receive(values: Registers) -> None:
                arrived = values[under_way]
                values[made] = arrived if is_moved else assemble(arrived)
                values[under_way] = None

            return receive
        fetch = present(self._mail, _BY_MAIL).receive

        def receive_mail(values: Registers) -> None:
            values[made] = assemble(fetch(index, microbatch))

        return receive_mail

    def _keep(self, item: Keep) -> Call:
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

    def _free(self, item: Free) -> Call:
        gone = [self.register((item.stage, slot, item.microbatch)) for slot in item.slots]

        def free(values: Registers) -> None:
            for i in gone:
                values[i] = None

        return free
