"""Let calls write over operands that nothing reads any more, as eager steps write in place.

A captured step makes a new tensor wherever the user's wrote into one: an optimizer would take new
memory for each of its moments, fill it, and give the old back, which costs more than what it
computes. Elementwise calls can write where their first operand is, if

- the operand is read for the last time, is of the result's shape and type, and
- nothing that is read later may lie in the same memory: a view of it, and
- the memory is the program's own: made for the operand, or of state that it gives a new value.

What a call returns may lie where its operands are unless its schema says otherwise. What a
collective brings is not written over: it lies in a bucket, which would live as long as a part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import torch

from frontends.torch.base.calls import Call, Operand
from frontends.torch.base.compat.operators import makes_new
from frontends.torch.lower.local import alike
from frontends.torch.lower.lower import Begin, Compute, Finish, LocalProgram, Node, with_last

aten = torch.ops.aten

_SYMMETRIC = frozenset({aten.add.Tensor, aten.mul.Tensor})


def in_place(program: LocalProgram, owned: Collection[int]) -> LocalProgram:
    """The same program, writing over what it does not need any more.

    Only for processes that have one device: virtual devices share tensors.

    Args:
        program: Each of its calls has `last`.
        owned: Registers of reads that nobody else reads, now or later, if the memory of the write
            that takes their place is new.
    """
    memory = _memory(program)
    read_last = _read_last(program)
    new = _new(program, memory)
    made = {r for node in program.nodes if _is_new(node) for r in node.results}
    free = {r for r in made if memory[r] in new}.union(owned)  # views may have elements in common
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
                nodes[-1] = replace(node, call=alike(call), plain=call)
                break
    return with_last(program, nodes, program.n_registers)


def owned_reads(program: LocalProgram, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """The reads that may be written over, of those whose place a write takes.

    Args:
        program: Of a chunk.
        pairs: The register of a read, and that of the write.

    Returns:
        Those whose writes lie in new memory alone, so that the next step's reads do.
    """
    memory = _memory(program)
    kept = [memory[register] for register in (*program.writes, *program.totals)]
    new = _new(program, memory)
    return [r for r, write in pairs if memory[write] in new and kept.count(memory[write]) == 1]


def _memory(program: LocalProgram) -> dict[int, int]:
    """For each register one of those that may lie in the same memory, the same for all of them."""
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
    """Whether results lie in new memory, each in its own."""
    if isinstance(node, Compute):
        return node.plain is not None and makes_new(node.plain.target)
    return isinstance(node, Begin | Finish)


def _new(program: LocalProgram, memory: dict[int, int]) -> set[int]:
    """Memory that the program's calls make."""
    given = {memory[register] for register in program.reads}
    made = {memory[r] for node in program.nodes if isinstance(node, Finish) for r in node.results}
    return set(memory.values()) - given - made


def _read_last(program: LocalProgram) -> dict[int, float]:
    """The position at which each register is read last."""
    kept = (*program.totals, *program.writes)
    found: dict[int, float] = {}
    for position, node in enumerate(program.nodes):
        found.update(dict.fromkeys(node.operands, position))
    return {**found, **dict.fromkeys(kept, len(program.nodes))}


def _over(node: Compute, program: LocalProgram) -> dict[int, Call]:
    """The operands that an elementwise call could write over, and the call that does."""
    call = node.plain
    if call is None or torch.Tag.pointwise not in call.target.tags or len(node.results) != 1:
        return {}
    name, _, overload = call.target.__name__.partition(".")
    packet = getattr(aten, f"{name}_", None)
    target = getattr(packet, overload, None) if packet is not None else None
    if target is None:
        return {}
    kind = program.kinds[node.results[0]]
    found: dict[int, Call] = {}
    orders = [call.arguments]
    if call.target in _SYMMETRIC and not call.keywords and len(call.arguments) == 2:
        orders.append(call.arguments[::-1])
    for arguments in orders:
        first = arguments[0]
        if isinstance(first, Operand):
            register = node.operands[first.place]
            if program.kinds[register] == kind:
                found.setdefault(register, Call(target, arguments, call.keywords))
    return found
