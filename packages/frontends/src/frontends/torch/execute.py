"""Run lowered programs on the shards that a process has, device after device in lock-step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from frontends.torch.calls import Tensor
from frontends.torch.collectives import Collectives, Shards
from frontends.torch.local import like
from frontends.torch.lower import Communicate, Compute, Program

Registers = list[Shards | None]

Record = Callable[[Communicate, Tensor], None]
"""Told of each collective that ran, and what a device got."""


def executable(
    program: Program,
    collectives: Collectives,
    added_axes: Sequence[tuple[int, ...]],
    record: Record,
) -> Callable[[list[Shards]], list[Shards]]:
    """A function from totals and reads to totals and writes; it empties the list of the former.

    A call whose operands are equal on several devices runs once, and they share its results. So
    nothing writes to a tensor that it did not make, but to the totals.

    Args:
        program: Of a chunk.
        collectives: Those of the stage's mesh.
        added_axes: For each total the axes along which devices hold something different of it.
        record: Told of collectives.
    """
    run_nodes = [
        _compute(node, collectives)
        if isinstance(node, Compute)
        else _communicate(node, collectives, record)
        for node in program.nodes
    ]
    adders = [_firsts(collectives, axes) for axes in added_axes]
    n_totals, n_free = len(program.totals), program.n_registers - len(program.reads)

    def run(given: list[Shards]) -> list[Shards]:
        totals = given[:n_totals]
        values: Registers = [*given[n_totals:], *[None] * n_free]
        given.clear()  # what is read last here goes then
        for node in run_nodes:
            node(values)
        for total, register, firsts in zip(totals, program.totals, adders, strict=True):
            made = _there(values, register)
            for i in firsts:
                total[i] += made[i]
        return [*totals, *(_there(values, register) for register in program.writes)]

    return run


def _compute(node: Compute, collectives: Collectives) -> Callable[[Registers], None]:
    call, last, coordinates = node.call, node.last, collectives.coordinates
    operands = node.operands
    first_of = like(coordinates, node.axes)
    firsts = sorted(set(first_of.values()))
    whose = [firsts.index(first_of[i]) for i in range(len(coordinates))]

    def run(values: Registers) -> None:
        read = [_there(values, register) for register in operands]
        made = [call([shards[i] for shards in read], coordinates[i]) for i in firsts]
        for k, register in enumerate(node.results):
            values[register] = [made[i][k] for i in whose]
        for register in last:
            values[register] = None

    return run


def _communicate(
    node: Communicate, collectives: Collectives, record: Record
) -> Callable[[Registers], None]:
    step, last = node.step, node.last
    (operand,), (result,) = node.operands, node.results

    def run(values: Registers) -> None:
        made = collectives(step, _there(values, operand))
        if not step.is_local:
            record(node, made[0])
        values[result] = made
        for register in last:
            values[register] = None

    return run


def _firsts(collectives: Collectives, axes: Sequence[int]) -> list[int]:
    """One device of each set of devices that have the same."""
    return sorted(set(like(collectives.coordinates, axes).values()))


def _there(values: Registers, register: int) -> Shards:
    shards = values[register]
    assert shards is not None, "a register is read after it was written"
    return shards
