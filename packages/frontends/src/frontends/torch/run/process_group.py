"""Collectives of this process's device with those of other processes, by `torch.distributed`.

Steps that are bound together become one collective: their operands are packed into one tensor, and
the result is split. Nothing waits before a result is requested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import shardspec
import torch
import torch.distributed as dist
from shardspec import Mesh

from frontends.torch.base.calls import Tensor
from frontends.torch.base.compat.process_groups import new_group
from frontends.torch.lower.local import Coordinates, part_of
from frontends.torch.run.lockstep import Bound, Shards, Wait, dim_of
from frontends.torch.run.watch import GROUP_TIMEOUT


class Grouped:
    """One device of a mesh, in this process: gloo connects it to others on CPUs, NCCL on GPUs.

    Args:
        mesh: The mesh of the stage; devices are ranks.
        rank: The rank of this process.
        axes: The axes over which collectives run, in an order that is the same in all processes
            of the mesh.
    """

    def __init__(self, mesh: Mesh, rank: int, axes: Sequence[tuple[int, ...]]) -> None:
        self.mesh = mesh
        self.devices: tuple[int, ...] = (rank,)
        self.coordinates: tuple[Coordinates, ...] = (tuple(mesh.coordinates(rank)),)
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        for over in dict.fromkeys(axes):
            ranks = _group_of(mesh.groups(over), rank)
            if ranks not in self._groups:
                in_order = sorted(ranks)
                self._groups[ranks] = new_group(in_order, GROUP_TIMEOUT)

    def bind(self, steps: Sequence[shardspec.Step]) -> Bound:
        """Return a function that begins collectives as one; see `Collectives.bind`."""
        (rank,) = self.devices
        if steps[0].kind == "collective_permute":
            return self._permute(steps)
        ranks = _group_of(steps[0].groups, rank)
        group = self._groups[ranks]
        # torch orders a group by rank, the plan by coordinates along the axes
        order = [ranks.index(other) for other in sorted(ranks)]
        kind, operation = steps[0].kind, _OPERATIONS[steps[0].reduction or "sum"]
        pack = _pack_parts if kind in ("reduce_scatter", "all_to_all") else _pack_whole
        unpack = _join if kind in ("all_gather", "all_to_all") else _cut_apart
        issue = _ISSUE[kind]

        def begin(operands: Sequence[Shards]) -> Wait:
            sent, shapes = pack(steps, [shard for (shard,) in operands], order)
            is_complex = sent.is_complex()  # not all collectives accept complex numbers
            if is_complex:
                sent = torch.view_as_real(sent).flatten()
            received, work = issue(sent, group, operation)

            def wait() -> list[Shards]:
                work.wait()
                packed = received
                if is_complex:
                    packed = torch.view_as_complex(received.view(*received.shape[:-1], -1, 2))
                return [[tensor] for tensor in unpack(steps, packed, shapes, order)]

            return wait

        return begin

    def _permute(self, steps: Sequence[shardspec.Step]) -> Bound:
        """Return a function that sends tensors to the next rank of a group."""
        (rank,) = self.devices
        ranks = _group_of(steps[0].groups, rank)
        place = ranks.index(rank)
        receiver, sender = ranks[(place + 1) % len(ranks)], ranks[place - 1]
        group = self._groups[_group_of(self.mesh.groups(steps[0].axes), rank)]

        def begin(operands: Sequence[Shards]) -> Wait:
            sent, shapes = _pack_whole(steps, [shard for (shard,) in operands], ())
            received, works = sent, list[dist.Work]()
            if receiver != rank:
                received = torch.empty_like(sent)
                both = (
                    dist.P2POp(dist.isend, sent, receiver, group),
                    dist.P2POp(dist.irecv, received, sender, group),
                )
                works = dist.batch_isend_irecv(list(both))

            def wait() -> list[Shards]:
                for work in works:
                    work.wait()
                return [[tensor] for tensor in _cut_apart(steps, received, shapes, ())]

            return wait

        return begin


_OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


def _all_reduce(
    sent: Tensor, group: dist.ProcessGroup, operation: dist.ReduceOp.RedOpType
) -> tuple[Tensor, dist.Work]:
    return sent, dist.all_reduce(sent, operation, group, async_op=True)


def _all_gather(
    sent: Tensor, group: dist.ProcessGroup, operation: dist.ReduceOp.RedOpType
) -> tuple[Tensor, dist.Work]:
    received = sent.new_empty(group.size() * sent.numel())
    work = dist.all_gather_single(received, sent, group, async_op=True)
    return received.view(group.size(), -1), work


def _reduce_scatter(
    sent: Tensor, group: dist.ProcessGroup, operation: dist.ReduceOp.RedOpType
) -> tuple[Tensor, dist.Work]:
    total = sent.new_empty(sent.numel() // group.size())
    return total, dist.reduce_scatter_single(total, sent, operation, group, async_op=True)


def _all_to_all(
    sent: Tensor, group: dist.ProcessGroup, operation: dist.ReduceOp.RedOpType
) -> tuple[Tensor, dist.Work]:
    received = torch.empty_like(sent)
    work = dist.all_to_all_single(received, sent, group=group, async_op=True)
    return received.view(group.size(), -1), work


_Issue = Callable[[Tensor, dist.ProcessGroup, dist.ReduceOp.RedOpType], tuple[Tensor, dist.Work]]
_ISSUE: dict[str, _Issue] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
}
"""By kind, begins a collective and returns the tensor that will hold its result. Tensors have one
dim, as gloo requires."""


def _pack_whole(
    steps: Sequence[shardspec.Step], operands: Sequence[Tensor], order: Sequence[int]
) -> tuple[Tensor, list[torch.Size]]:
    """Return a copy of all operands in one tensor of one dim, and their shapes."""
    return torch.cat([t.reshape(-1) for t in operands]), [t.shape for t in operands]


def _pack_parts(
    steps: Sequence[shardspec.Step], operands: Sequence[Tensor], order: Sequence[int]
) -> tuple[Tensor, list[torch.Size]]:
    """Return, for each rank in turn, its parts of all operands, and the shapes of these."""
    n, pairs = len(order), list(zip(steps, operands, strict=True))
    rows = [[part_of(t, _cut_dim(step), place, n) for step, t in pairs] for place in order]
    packed = torch.cat([part.reshape(-1) for row in rows for part in row])
    return packed, [part.shape for part in rows[0]]


def _cut_dim(step: shardspec.Step) -> int:
    return dim_of(step) if step.to_dim is None else step.to_dim


def _cut_apart(
    steps: Sequence[shardspec.Step],
    received: Tensor,
    shapes: Sequence[torch.Size],
    order: Sequence[int],
) -> list[Tensor]:
    """Split a tensor of one dim into tensors of these shapes."""
    parts = torch.split(received, [shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _join(
    steps: Sequence[shardspec.Step],
    received: Tensor,
    shapes: Sequence[torch.Size],
    order: Sequence[int],
) -> list[Tensor]:
    """Concatenate tensors of which each rank has sent a part."""
    place = {member: row for row, member in enumerate(order)}
    rows = [_cut_apart(steps, received[place[i]], shapes, order) for i in range(len(order))]
    return [
        torch.cat(parts, dim_of(step))
        for step, parts in zip(steps, zip(*rows, strict=True), strict=True)
    ]


def _group_of(groups: Sequence[Sequence[int]], rank: int) -> tuple[int, ...]:
    return next(tuple(group) for group in groups if rank in group)
