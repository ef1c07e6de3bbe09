"""Let the collectives of a program run beside its calls, small ones together.

A collective begins as soon as its operand is there, and is waited for where its result is read
first: gradients travel while backward makes the next ones. A view of a result does not read it: it
is made when somebody reads the view. What makes a tensor larger begins where the plan has it, so
that no more is held than was planned.

Small collectives that do the same over the same devices, with the same type, are one *bucket*: what
they send is put together, sent at once, and cut apart when it is there. It begins when the operand
of its last part is made, so it holds parts only whose results are read after that. It is what
PyTorch's DDP does with gradients (Li et al., "PyTorch Distributed", VLDB 13(12), 2020, section
4.2); as there, buckets are filled in the order in which operands are made.

A bucket is its parts, each a collective that the plan names: together they send the bytes that the
plan says. The order in which buckets begin is that of the program, so all devices of a mesh have
the same. The plan's price is that of collectives that run one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch

from frontends.torch.base.compat.operators import makes_new
from frontends.torch.lower.lower import (
    Begin,
    Communicate,
    Compute,
    Finish,
    LocalProgram,
    Node,
    with_last,
)

BUCKET_BYTES = 25 * 2**20
"""A bucket sends at most this of a device; what is larger runs alone. DDP's `bucket_cap_mb`."""

_NOT_GROWING = ("all_reduce", "reduce_scatter")
"""Kinds whose result is no larger than their operand, which it takes the place of."""

_Alike = tuple[str, tuple[int, ...], str | None, torch.dtype]
"""Kind, mesh axes, reduction and type of collectives that can be one."""


@dataclass(slots=True)
class _Bucket:
    """Collectives that begin together."""

    n_bytes: int
    begins: int
    """The position of the node after which it begins; -1 before the first."""

    ends: int
    """The position of the node before which it must have ended."""

    parts: list[Communicate] = field(default_factory=list)


def overlapped(program: LocalProgram) -> LocalProgram:
    """The same program, with its collectives in buckets that begin early and end late."""
    program = replace(program, nodes=tuple(_with_late_views(program)))
    made_at: dict[int, int] = dict.fromkeys(program.reads, -1)
    read_at: dict[int, int] = dict.fromkeys((*program.totals, *program.writes), len(program.nodes))
    sent = [_is_sent(node) for node in program.nodes]
    for position, node in reversed(list(enumerate(program.nodes))):
        made_at.update(dict.fromkeys(node.results, position))
        read_at.update(dict.fromkeys(node.operands, position))

    def begins(position: int, node: Communicate) -> int:
        made = made_at[node.operands[0]]
        is_late = node.step.kind not in _NOT_GROWING or (made >= 0 and sent[made])
        return position if is_late else made

    found = [
        (begins(position, node), read_at[node.results[0]], node)
        for position, node in enumerate(program.nodes)
        if isinstance(node, Communicate) and sent[position]
    ]
    buckets = _filled(program, sorted(found, key=lambda one: one[0]))
    return _woven(program, sent, buckets)


def _with_late_views(program: LocalProgram) -> list[Node]:
    """The program's nodes, but views of what was received come where they are read."""
    received: set[int] = set()
    waiting: dict[int, Node] = {}
    found: list[Node] = []

    def need(registers: Iterable[int]) -> None:
        for register in registers:
            if register in waiting:
                node = waiting.pop(register)
                need(node.operands)
                found.append(node)

    for node in program.nodes:
        if _is_view(node) and not received.isdisjoint(node.operands):
            waiting[node.results[0]] = node
            received.update(node.results)
            continue
        need(node.operands)
        found.append(node)
        if _is_sent(node):
            received.update(node.results)
    need(list(waiting))
    return found


def _is_view(node: Node) -> bool:
    """Whether a call of one operand does no more than see it in another shape."""
    if not isinstance(node, Compute) or node.plain is None:
        return False
    is_one = len(node.operands) == len(node.results) == 1
    return is_one and not makes_new(node.plain.target)


def _is_sent(node: Node) -> bool:
    return isinstance(node, Communicate) and not node.step.is_local


def _filled(program: LocalProgram, found: Sequence[tuple[int, int, Communicate]]) -> list[_Bucket]:
    """Put collectives into buckets, in the order in which they can begin."""
    buckets: list[_Bucket] = []
    open_: dict[_Alike, _Bucket] = {}
    for begins, ends, node in found:
        step = node.step
        dtype = program.kinds[node.operands[0]].dtype
        alike = step.kind, step.mesh_axes, step.reduction, dtype
        n_bytes = step.src.local_bytes(dtype.itemsize)
        bucket = open_.get(alike)
        if bucket is None or bucket.n_bytes + n_bytes > BUCKET_BYTES or bucket.ends <= begins:
            bucket = _Bucket(0, begins, ends)
            buckets.append(bucket)
            open_[alike] = bucket
        bucket.parts.append(node)
        bucket.n_bytes += n_bytes
        bucket.begins, bucket.ends = begins, min(bucket.ends, ends)
    return buckets


def _woven(program: LocalProgram, sent: Sequence[bool], buckets: Sequence[_Bucket]) -> LocalProgram:
    """The program's calls, with buckets that begin and end between them."""
    after: defaultdict[int, list[Node]] = defaultdict(list)
    before: defaultdict[int, list[Node]] = defaultdict(list)
    n_registers = program.n_registers
    for bucket in sorted(buckets, key=lambda one: one.begins):
        token, n_registers = n_registers, n_registers + 1
        operands = tuple(register for part in bucket.parts for register in part.operands)
        results = tuple(register for part in bucket.parts for register in part.results)
        parts = tuple(bucket.parts)
        after[bucket.begins].append(Begin(parts, operands, (token,)))
        before[bucket.ends].append(Finish(parts, (token,), results))
    nodes: list[Node] = list(after[-1])
    for position, node in enumerate(program.nodes):
        nodes += before[position]
        if not sent[position]:
            nodes.append(node)
        nodes += after[position]
    nodes += before[len(program.nodes)]
    return with_last(program, nodes, n_registers)
