"""Runs lowered programs on a process's shards, device after device in lock-step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.profiler import record_function

from frontends.errors import InternalError
from frontends.torch.base.calls import Tensor
from frontends.torch.base.compat.profiling import is_profiling
from frontends.torch.lower.local import like
from frontends.torch.lower.nodes import (
    Begin,
    Communicate,
    Compute,
    Finish,
    LocalProgram,
    Node,
    Region,
)
from frontends.torch.run.compiled import RegionRunner
from frontends.torch.run.lockstep import Collectives, Shards
from frontends.torch.run.operator_error import OperatorError
from frontends.torch.run.ranges import name_of_collectives

Registers = list[Any]
"""For each register the shards of a value, a function that waits for collectives, or None."""

Record = Callable[[Communicate, Tensor], None]
"""Called for each collective that ran, with what a device received."""


def executable(
    program: LocalProgram,
    collectives: Collectives,
    added_axes: Sequence[tuple[int, ...]],
    record: Record,
    runners: list[RegionRunner],
) -> Callable[[list[Shards]], list[Shards]]:
    """Return a function from totals and reads to totals and writes; it empties the list it gets.

    A call whose operands are equal on several devices runs once, and they share its results. So no
    node writes to a tensor that it did not create; only totals are written to.

    The function raises `OperatorError` where a call fails; errors about other processes are passed
    on.

    Args:
        program: The program of a chunk, from `frontends.torch.lower.bucketing`.
        collectives: Runs collectives on the stage's mesh.
        added_axes: For each total, the axes along which devices hold different parts of it.
        record: Called for each collective.
        runners: Gets what runs the program's regions.
    """
    run_nodes = [_bound(node, collectives, record, runners) for node in program.nodes]
    adders = [_firsts(collectives, axes) for axes in added_axes]
    n_totals, n_free = len(program.totals), program.n_registers - len(program.reads)

    def run(arguments: list[Shards]) -> list[Shards]:
        totals = arguments[:n_totals]
        values: Registers = [*arguments[n_totals:], *[None] * n_free]
        arguments.clear()  # so that each value is freed after its last read here
        at = 0
        try:
            for at, node in enumerate(run_nodes):  # noqa: B007, the error says where it was
                node(values)
        except OperatorError:
            raise
        except Exception as error:
            failed = program.nodes[at]
            if isinstance(failed, Compute):
                raise OperatorError(failed, error) from error
            raise
        for total, register, firsts in zip(totals, program.totals, adders, strict=True):
            addends = values[register]
            for i in firsts:
                total[i] += addends[i]
        return [*totals, *(values[register] for register in program.writes)]

    return run


def _bound(
    node: Node, collectives: Collectives, record: Record, runners: list[RegionRunner]
) -> Callable[[Registers], None]:
    match node:
        case Region():
            return _region(node, collectives, runners)
        case Compute():
            if len(collectives.coordinates) == 1:
                return _compute_alone(node, collectives)
            return _compute(node, collectives)
        case Communicate():
            raise InternalError(f"a collective is split into a begin and a finish; got {node.step}")
        case Begin():
            return _begin(node, collectives)
        case Finish():
            return _finish(node, record)


def _compute(node: Compute, collectives: Collectives) -> Callable[[Registers], None]:
    call, last, coordinates = node.call, node.last, collectives.coordinates
    operands = node.operands
    first_of = like(coordinates, node.axes)
    firsts = sorted(set(first_of.values()))
    whose = [firsts.index(first_of[i]) for i in range(len(coordinates))]

    def run(values: Registers) -> None:
        read = [values[register] for register in operands]
        results = [call([shards[i] for shards in read], coordinates[i]) for i in firsts]
        for k, register in enumerate(node.results):
            values[register] = [results[i][k] for i in whose]
        for register in last:
            values[register] = None

    return run


def _compute_alone(node: Compute, collectives: Collectives) -> Callable[[Registers], None]:
    """Do the same as `_compute` for a process with one device."""
    call, operands, results, last = node.call, node.operands, node.results, node.last
    (coordinates,) = collectives.coordinates

    def run(values: Registers) -> None:
        tensors = call([values[register][0] for register in operands], coordinates)
        for register, tensor in zip(results, tensors, strict=True):
            values[register] = [tensor]
        for register in last:
            values[register] = None

    return run


def _region(
    node: Region, collectives: Collectives, runners: list[RegionRunner]
) -> Callable[[Registers], None]:
    """Bind a region; devices along whose axes a result does not differ share it."""
    operands, same, last, coordinates = node.operands, node.same, node.last, collectives.coordinates
    axes = {register: call.axes for call in node.nodes for register in call.results}
    shared = [(register, like(coordinates, axes[register])) for register in node.results]
    first_of = like(coordinates, sorted({axis for call in node.nodes for axis in call.axes}))
    by_device = {i: RegionRunner(node, coordinates[i]) for i in sorted(set(first_of.values()))}
    runners += by_device.values()

    def run(values: Registers) -> None:
        read = [values[register] for register in operands]
        results = {i: run([shards[i] for shards in read]) for i, run in by_device.items()}
        for k, (register, first) in enumerate(shared):
            values[register] = [results[first_of[first[i]]][k] for i in range(len(coordinates))]
        for register, operand in same:
            values[register] = values[operand]
        for register in last:
            values[register] = None

    return run


def _begin(node: Begin, collectives: Collectives) -> Callable[[Registers], None]:
    operands, (result,), last = node.operands, node.results, node.last
    steps = [part.step for part in node.parts]
    begin = collectives.bind(steps)

    def run(values: Registers) -> None:
        values[result] = begin([values[register] for register in operands])
        for register in last:
            values[register] = None

    return _named(run, f"begin {name_of_collectives(steps)}")


def _finish(node: Finish, record: Record) -> Callable[[Registers], None]:
    (operand,), results, last = node.operands, node.results, node.last

    def run(values: Registers) -> None:
        for part, register, shards in zip(node.parts, results, values[operand](), strict=True):
            record(part, shards[0])
            values[register] = shards
        for register in last:
            values[register] = None

    return _named(run, f"finish {name_of_collectives([part.step for part in node.parts])}")


def _named(run: Callable[[Registers], None], name: str) -> Callable[[Registers], None]:
    """Name a call for the profiler of torch, if there is one."""

    def call(values: Registers) -> None:
        if is_profiling():
            with record_function(name):
                run(values)
        else:
            run(values)

    return call


def _firsts(collectives: Collectives, axes: Sequence[int]) -> list[int]:
    """Return one device of each set of devices that hold the same."""
    return sorted(set(like(collectives.coordinates, axes).values()))
