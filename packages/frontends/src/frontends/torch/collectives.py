"""Collectives of a resharding, over the shards that a process has.

`LockStep` has the shards of all devices in one process, which take turns: collectives are sums and
copies in memory. `Grouped` has the shard of one device, and `torch.distributed` connects it with
the others: gloo on CPUs, NCCL on GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import shardspec
import torch
import torch.distributed as dist
from shardspec import Mesh

from frontends.torch.calls import Tensor
from frontends.torch.local import Coordinates

Shards = list[Tensor]
"""What the devices of this process hold of a value, in the order of the mesh."""


class Collectives(Protocol):
    """Runs collectives on a mesh."""

    mesh: Mesh
    devices: tuple[int, ...]
    """Those of this process, in the order of the mesh."""

    coordinates: tuple[Coordinates, ...]
    """Where they stand in the mesh."""

    def __call__(self, step: shardspec.Step, shards: Shards) -> Shards:
        """The devices' shards after a step."""


class LockStep:
    """All devices of a mesh in one process.

    Devices that get the same share one tensor, which nothing writes to.

    Args:
        mesh: Of the stage.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.devices: tuple[int, ...] = tuple(mesh.device_ids)
        self.coordinates: tuple[Coordinates, ...] = tuple(map(mesh.coordinates, self.devices))
        self._position = {device: i for i, device in enumerate(self.devices)}

    def __call__(self, step: shardspec.Step, shards: Shards) -> Shards:
        """The devices' shards after a step."""
        made: dict[tuple[int, ...], Sequence[Tensor]] = {}
        found: Shards = list(shards)
        for group in step.groups:
            members = [self._position[device] for device in group]
            parts = [shards[i] for i in members]
            same = tuple(map(id, parts))
            if same not in made:
                made[same] = _within_group(step, parts)
            for i, shard in zip(members, made[same], strict=True):
                found[i] = shard
        return found


class Grouped:
    """One device of a mesh in this process, which `torch.distributed` connects with the others.

    Args:
        mesh: Of the stage; devices are ranks.
        rank: Of this process.
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
                self._groups[ranks] = dist.new_group(in_order, use_local_synchronization=True)

    def __call__(self, step: shardspec.Step, shards: Shards) -> Shards:
        """The device's shard after a step."""
        (shard,) = shards
        (rank,) = self.devices
        ranks = _group_of(step.groups, rank)
        place, n = ranks.index(rank), len(ranks)
        if step.kind == "slice":
            return [_part(shard, _dim(step), place, n).contiguous()]
        group = self._groups[ranks]
        if step.kind == "all_reduce":
            total = shard.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, _OPERATIONS[step.reduction or "sum"], group)
            return [total]
        # torch orders a group by rank, the plan by the axes' coordinates
        order = [ranks.index(other) for other in sorted(ranks)]
        if step.kind == "all_gather":
            shard = shard.contiguous()
            received = [torch.empty_like(shard) for _ in range(n)]
            dist.all_gather(received, shard, group)
            return [torch.cat(_sorted_back(received, order), _dim(step))]
        cut = _dim(step) if step.kind == "reduce_scatter" else step.to_dim
        assert cut is not None
        parts = [_part(shard, cut, i, n).contiguous() for i in order]
        if step.kind == "reduce_scatter":
            own = torch.empty_like(parts[0])
            dist.reduce_scatter(own, parts, _OPERATIONS[step.reduction or "sum"], group)
            return [own]
        sent = torch.stack(parts)
        arrived = torch.empty_like(sent)
        dist.all_to_all_single(arrived, sent, group=group)
        return [torch.cat(_sorted_back(list(arrived.unbind()), order), _dim(step))]


_OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


def _sorted_back(received: Sequence[Tensor], order: Sequence[int]) -> list[Tensor]:
    """What came in the order of ranks, in the order of the group."""
    place = {member: i for i, member in enumerate(order)}
    return [received[place[member]] for member in range(len(order))]


def _within_group(step: shardspec.Step, parts: Sequence[Tensor]) -> Sequence[Tensor]:
    """What each member of a group gets, from what each has, in group order."""
    n = len(parts)
    if step.kind == "all_reduce":
        return [_combined(step, parts)] * n
    if step.kind == "all_gather":
        return [torch.cat(list(parts), _dim(step))] * n
    if step.kind == "reduce_scatter":
        return [_combined(step, [_part(p, _dim(step), i, n) for p in parts]) for i in range(n)]
    if step.kind == "all_to_all":
        cut = step.to_dim
        assert cut is not None
        return [torch.cat([_part(p, cut, i, n) for p in parts], _dim(step)) for i in range(n)]
    assert step.kind == "slice"
    # aten's norms read their saved statistics as if they were contiguous, whatever their strides
    return [_part(part, _dim(step), i, n).contiguous() for i, part in enumerate(parts)]


def _combined(step: shardspec.Step, parts: Sequence[Tensor]) -> Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        if step.reduction == "max":
            torch.maximum(total, part, out=total)
        elif step.reduction == "min":
            torch.minimum(total, part, out=total)
        else:
            total += part
    return total


def _dim(step: shardspec.Step) -> int:
    assert step.dim is not None, "whole axes are converted along one dim"
    return step.dim


def _part(tensor: Tensor, dim: int, place: int, n: int) -> Tensor:
    size = tensor.shape[dim] // n
    return tensor.narrow(dim, place * size, size)


def _group_of(groups: Sequence[Sequence[int]], rank: int) -> tuple[int, ...]:
    return next(tuple(group) for group in groups if rank in group)
