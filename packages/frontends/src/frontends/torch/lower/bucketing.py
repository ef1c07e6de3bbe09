"""Overlaps a program's collectives with its calls, and joins small collectives into buckets.

A collective begins as soon as its operand is computed, and is waited for where its result is first
read: gradients are sent while backward computes the next ones. A view of the result does not count
as a read; the view is made where the view is first read. A collective whose result is larger than
its operand begins where the plan has it, so that no more memory is held than planned.

Small collectives of the same kind, over the same devices and with the same type, form a *bucket*:
their operands are concatenated, sent together, and split on arrival. A bucket begins when the
operand of its last part is computed, so it contains only parts whose results are read after that.
PyTorch's DDP does the same with gradients (Li et al., "PyTorch Distributed", VLDB 13(12), 2020,
section 4.2); as there, buckets are filled in the order in which operands are computed.

Each part of a bucket is a collective that the plan names, so together they send the plan's bytes.
Buckets begin in the order of the program, so all devices of a mesh have the same order. The plan's
price is that of collectives that run one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch

from frontends.torch.base.compat.operators import makes_new
from frontends.torch.lower.nodes import (
    Begin,
    Communicate,
    Compute,
    Finish,
    LocalProgram,
    Node,
    with_last,
)

BUCKET_BYTES = 25 * 2**20
"""The most bytes of a device that a bucket sends; a larger collective runs alone. It is the value
of DDP's `bucket_cap_mb`."""

_NOT_GROWING = ("all_reduce", "reduce_scatter")
"""Kinds whose result is no larger than their operand, and replaces it in memory."""

_Alike = tuple[str, tuple[int, ...], int, str | None, torch.dtype]
"""Kind, mesh axes, size of groups, reduction and type: if these are equal, collectives can share a
bucket."""


@dataclass(slots=True)
class _Bucket:
    """Collectives that begin together."""

    n_bytes: int
    begins: int
    """The position of the node after which it begins; -1 for before the first."""

    ends: int
    """The position of the node before which it must have ended."""

    parts: list[Communicate] = field(default_factory=list)


def overlapped(program: LocalProgram) -> LocalProgram:
    """Return the program with its collectives in buckets that begin early and end late."""
    program = replace(program, nodes=tuple(_with_late_views(program)))
    made_at: dict[int, int] = dict.fromkeys(program.reads, -1)
    read_at: dict[int, int] = dict.fromkeys((*program.totals, *program.writes), len(program.nodes))
    sent = [isinstance(node, Communicate) for node in program.nodes]
    for position, node in reversed(list(enumerate(program.nodes))):
        made_at.update(dict.fromkeys(node.results, position))
        read_at.update(dict.fromkeys(node.operands, position))

    def begins(position: int, node: Communicate) -> int:
        produced = made_at[node.operands[0]]
        is_late = node.step.kind not in _NOT_GROWING or (produced >= 0 and sent[produced])
        return position if is_late else produced

    collectives = [
        (begins(position, node), read_at[node.results[0]], node)
        for position, node in enumerate(program.nodes)
        if isinstance(node, Communicate)
    ]
    buckets = _filled(program, sorted(collectives, key=lambda one: one[0]))
    return _woven(program, sent, buckets)


def _with_late_views(program: LocalProgram) -> list[Node]:
    """Return the program's nodes, with views of received tensors moved to where they are read."""
    received: set[int] = set()
    waiting: dict[int, Node] = {}
    nodes: list[Node] = []

    def need(registers: Iterable[int]) -> None:
        for register in registers:
            if register in waiting:
                node = waiting.pop(register)
                need(node.operands)
                nodes.append(node)

    for node in program.nodes:
        if _is_view(node) and not received.isdisjoint(node.operands):
            waiting[node.results[0]] = node
            received.update(node.results)
            continue
        need(node.operands)
        nodes.append(node)
        if isinstance(node, Communicate):
            received.update(node.results)
    need(list(waiting))
    return nodes


def _is_view(node: Node) -> bool:
    """Return whether a call has one operand and may return a view of it."""
    if not isinstance(node, Compute) or node.plain is None:
        return False
    is_one = len(node.operands) == len(node.results) == 1
    return is_one and not makes_new(node.plain.target)


def _filled(
    program: LocalProgram, collectives: Sequence[tuple[int, int, Communicate]]
) -> list[_Bucket]:
    """Put collectives into buckets, in the order in which they can begin."""
    buckets: list[_Bucket] = []
    open_: dict[_Alike, _Bucket] = {}
    for begins, ends, node in collectives:
        step = node.step
        dtype = program.kinds[node.operands[0]].dtype
        alike = step.kind, step.mesh_axes, step.group_size, step.reduction, dtype
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
    """Return the program with its collectives replaced by begins and ends of buckets."""
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
