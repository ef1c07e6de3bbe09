"""Lets calls overwrite operands that nothing reads any more, as eager steps write in place.

A captured step creates a new tensor wherever the user's step wrote in place: an optimizer would
allocate memory for each of its moments, fill it, and free the old memory, which costs more than the
arithmetic. An elementwise call can write to the memory of its first operand if

- the operand is read for the last time, and has the result's shape and type, and
- nothing that is read later, such as a view, may be in the same memory, and
- the memory belongs to the program: allocated for the operand, or of state that it updates.

The result of a call may be in the memory of its operands unless its schema rules that out. The
result of a collective is not overwritten: it is part of a bucket, whose whole memory would live as
long as the part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import torch

from frontends.torch.base.calls import Call, Operand
from frontends.torch.base.compat.operators import makes_new
from frontends.torch.lower.local import alike
from frontends.torch.lower.nodes import Begin, Compute, Finish, LocalProgram, Node, with_last

aten = torch.ops.aten

_MAY_FAIL = (
    *("embedding", "_embedding_bag", "gather", "scatter", "index", "take", "nll_loss", "bincount"),
    *("linalg_", "_linalg_", "cholesky", "_assert"),
)
"""How names of operators begin that fail for some values, such as indices that are too large."""

_DIVIDES = ("div", "floor_divide", "remainder", "fmod")
"""Likewise of those that fail if they divide integers by 0."""

_SYMMETRIC = frozenset({aten.add.Tensor, aten.mul.Tensor})


def in_place(program: LocalProgram, owned: Collection[int]) -> LocalProgram:
    """Return the program with calls that overwrite operands where they can.

    This is only for processes with one device: virtual devices share tensors.

    Args:
        program: A program whose nodes have `last`.
        owned: Registers of reads that the program may overwrite, as nothing else reads them, from
            `owned_reads`.
    """
    memory = memory_of(program)
    read_last = _read_last(program)
    new = _new(program, memory)
    produced = {r for node in program.nodes if _is_new(node) for r in node.results}
    # not views, whose elements may overlap
    free = {r for r in produced if memory[r] in new}.union(owned)
    until: dict[int, float] = {}
    for register, where in memory.items():
        until[where] = max(until.get(where, -1), read_last.get(register, -1))
    nodes: list[Node] = []
    for position, node in enumerate(program.nodes):
        nodes.append(node)
        if not isinstance(node, Compute):
            continue
        for register, call in _over(node, program).items():
            where = memory[register]
            others = [memory[r] for r in node.operands if r != register]
            if register in free and until[where] == position and where not in others:
                nodes[-1] = replace(node, call=alike(call), plain=call, key=call.key)
                break
    return with_last(program, nodes, program.n_registers)


def owned_reads(program: LocalProgram, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """Return the reads that may be overwritten, among those that a write replaces.

    Args:
        program: The program of a chunk.
        pairs: For each such read, its register and that of the write.

    Returns:
        The reads whose writes are alone in new memory: then the reads of the next step are, too.
        Without those that would be overwritten before a call that may fail, as a step that fails
        leaves the state as it was.
    """
    memory = memory_of(program)
    read_last = _read_last(program)
    fails = [at for at, node in enumerate(program.nodes) if may_fail(node, program)]
    pairs = [(r, write) for r, write in pairs if read_last.get(r, -1) >= max(fails, default=-1)]
    kept = [memory[register] for register in (*program.writes, *program.totals)]
    new = _new(program, memory)
    return [r for r, write in pairs if memory[write] in new and kept.count(memory[write]) == 1]


def may_fail(node: Node, program: LocalProgram) -> bool:
    """Return whether it depends on the values of a call's operands whether it fails."""
    if not isinstance(node, Compute) or node.plain is None:
        return False
    name = node.plain.name
    if "::" in name or name.startswith(_MAY_FAIL):  # nothing is known of another library's
        return True
    dtypes = [program.kinds[register].dtype for register in node.results]
    return name.startswith(_DIVIDES) and not all(dtype.is_floating_point for dtype in dtypes)


def memory_of(program: LocalProgram) -> dict[int, int]:
    """Return for each register a representative of those that may be in the same memory."""
    above: dict[int, int] = {}

    def root(register: int) -> int:
        while above.setdefault(register, register) != register:
            above[register] = register = above[above[register]]
        return register

    for node in program.nodes:
        for result in node.results:
            root(result)
            if not _is_new(node):
                for operand in node.operands:
                    above[root(operand)] = root(result)
    return {register: root(register) for register in (*program.reads, *above)}


def _is_new(node: Node) -> bool:
    """Return whether each result of a node is in new memory of its own."""
    if isinstance(node, Compute):
        return node.plain is not None and makes_new(node.plain.target)
    return isinstance(node, Begin | Finish)


def _new(program: LocalProgram, memory: dict[int, int]) -> set[int]:
    """Return the memory that the program's calls allocate, in terms of `memory_of`."""
    read = {memory[register] for register in program.reads}
    sent = {memory[r] for node in program.nodes if isinstance(node, Finish) for r in node.results}
    return set(memory.values()) - read - sent


def _read_last(program: LocalProgram) -> dict[int, float]:
    """Return the position at which each register is last read."""
    kept = (*program.totals, *program.writes)
    positions: dict[int, float] = {}
    for position, node in enumerate(program.nodes):
        positions.update(dict.fromkeys(node.operands, position))
    return {**positions, **dict.fromkeys(kept, len(program.nodes))}


def _over(node: Compute, program: LocalProgram) -> dict[int, Call]:
    """Return the operands that an elementwise call could overwrite, each with the call to do so."""
    call = node.plain
    if call is None or torch.Tag.pointwise not in call.target.tags or len(node.results) != 1:
        return {}
    name, _, overload = call.target.__name__.partition(".")
    packet = getattr(aten, f"{name}_", None)
    target = getattr(packet, overload, None) if packet is not None else None
    if target is None:
        return {}
    kind = program.kinds[node.results[0]]
    calls: dict[int, Call] = {}
    orders = [call.arguments]
    if call.target in _SYMMETRIC and not call.keywords and len(call.arguments) == 2:
        orders.append(call.arguments[::-1])
    for arguments in orders:
        first = arguments[0]
        if isinstance(first, Operand):
            register = node.operands[first.place]
            if program.kinds[register] == kind:
                calls.setdefault(register, Call(target, arguments, call.keywords))
    return calls
