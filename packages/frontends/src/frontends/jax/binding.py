"""Bind instructions to what executes them: each becomes a call on numbered registers.

A value's register follows from its stage, slot and microbatch, so nothing is looked up by name
while a step runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import crossmesh
import jax

from frontends.chunks import Chunk
from frontends.instructions import (
    Free,
    Instruction,
    Keep,
    Key,
    Load,
    Receive,
    Run,
    Send,
    Zero,
    makes,
    uses,
)
from frontends.jax.compile import Shards, Submeshes, compile_zeros
from frontends.plan import Plan, Stored

Registers = list[Any]

Call = Callable[[Registers], None]


class Mail(Protocol):
    """Carries transfers between processes; messages are told apart by transfer and microbatch."""

    def send(self, transfer: int, microbatch: int | None, shards: Shards) -> None:
        """Begin to send what this process has, without waiting."""

    def receive(self, transfer: int, microbatch: int | None) -> Shards:
        """Wait for the shards of this process."""


def find_dying(
    instructions: Sequence[Instruction],
    plan: Plan,
    chunks: Sequence[Chunk],
    owned: Iterable[Key] = (),
) -> dict[int, frozenset[int]]:
    """By chunk, the positions of the reads that nothing reads later, whenever it runs.

    Only what XLA made counts, and what is `owned` from the start: what was loaded or received may
    share its memory with others.
    """
    made: set[Key] = set()
    ours = set(owned)
    found: dict[int, frozenset[int]] = {}
    for index, item in enumerate(instructions):
        if isinstance(item, Run):
            gone: set[Key] = set()
            for later in instructions[index + 1 :]:
                if not isinstance(later, Free):
                    break
                gone.update((later.stage, slot, later.microbatch) for slot in later.slots)
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
        plan: What the instructions are of.
        chunks: Its programs' reads and writes.
        submeshes: Where its stages are.
        programs: The compiled chunks.
        planned: How each transfer goes from device to device.
        mail: Carries transfers between processes; None if there is one process only.
    """

    def __init__(
        self,
        plan: Plan,
        chunks: Sequence[Chunk],
        submeshes: Submeshes,
        programs: Sequence[Any],
        planned: Sequence[crossmesh.TransferPlan],
        mail: Mail | None,
    ) -> None:
        self._plan, self._chunks, self._submeshes = plan, chunks, submeshes
        self._programs, self._planned, self._mail = programs, planned, mail
        self.registers: dict[object, int] = {}
        """The number of a key's register; of ("batch", name) for an argument that is cut."""

        self._made: set[Key] = set()
        self._local: dict[int, crossmesh.LocalTransport] = {}

    def register(self, key: object) -> int:
        """The register of a key."""
        return self.registers.setdefault(key, len(self.registers))

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
        target = self._submeshes.abstract(item.stage, item.slot)
        put, where = self._submeshes.put, target.sharding
        if not target.shape:  # a number that belongs to all examples
            return lambda values: values.__setitem__(made, put(values[batch], where))
        first = item.microbatch * target.shape[0]
        part = slice(first, first + target.shape[0])

        def load(values: Registers) -> None:
            values[made] = put(values[batch][part], where)

        return load

    def _zero(self, item: Zero) -> Call:
        chunk = self._chunks[item.chunk]
        make = compile_zeros(chunk, self._submeshes)
        totals = [self.register((item.stage, slot, None)) for slot in chunk.totals]

        def zero(values: Registers) -> None:
            for i, result in zip(totals, make(), strict=True):
                values[i] = result

        return zero

    def _run(self, item: Run) -> Call:
        chunk, program = self._chunks[item.chunk], self._programs[item.chunk]
        totals = [self.register((item.stage, slot, None)) for slot in chunk.totals]
        reads = [self.register(_where(item, slot, self._made)) for slot in chunk.reads]
        writes = [self.register((item.stage, slot, item.microbatch)) for slot in chunk.writes]
        taken, given = (*totals, *reads), (*totals, *writes)

        def run(values: Registers) -> None:
            # XLA:CPU aborts if programs with collectives queue up for more threads than it has.
            results = jax.block_until_ready(program(*[values[i] for i in taken]))
            for i, result in zip(given, results, strict=True):
                values[i] = result

        return run

    def _is_local(self, index: int) -> bool:
        """Whether a transfer stays in this process."""
        transfer, meshes = self._plan.transfers[index], self._submeshes.meshes
        ends = (meshes[transfer.source], meshes[transfer.destination])
        return len(frozenset[int]().union(*map(self._submeshes.processes, ends))) == 1

    def _send(self, item: Send) -> Call:
        transfer = self._plan.transfers[item.transfer]
        sent = self.register(_where(item, Stored(transfer.value, transfer.src_spec), self._made))
        shards, index, microbatch = self._submeshes.shards, item.transfer, item.microbatch
        if self._is_local(index):
            under_way = self.register(("mail", index, microbatch))
            if index not in self._local:
                self._local[index] = crossmesh.LocalTransport(self._planned[index], share=True)
            carry = self._local[index]

            def send(values: Registers) -> None:
                values[under_way] = carry(shards(values[sent]))

            return send
        assert self._mail is not None
        post = self._mail.send
        return lambda values: post(index, microbatch, shards(values[sent]))

    def _receive(self, item: Receive) -> Call:
        transfer = self._plan.transfers[item.transfer]
        slot = Stored(transfer.value, transfer.dst_spec)
        target = self._submeshes.abstract(item.stage, slot)
        made = self.register((item.stage, slot, item.microbatch))
        assemble, index, microbatch = self._submeshes.assemble, item.transfer, item.microbatch
        if self._is_local(index):
            under_way = self.register(("mail", index, microbatch))

            def receive(values: Registers) -> None:
                values[made] = assemble(target, values[under_way])
                values[under_way] = None

            return receive
        assert self._mail is not None
        fetch = self._mail.receive

        def receive_mail(values: Registers) -> None:
            values[made] = assemble(target, fetch(index, microbatch))

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


def bind_all(
    binder: Binder, instructions: Iterable[Instruction], is_local: Mapping[int, bool]
) -> list[tuple[int, Call]]:
    """The calls of this process's stages, each with its place in the order of all processes."""
    return [
        (place, binder.bind(item))
        for place, item in enumerate(instructions)
        if is_local[item.stage]
    ]
