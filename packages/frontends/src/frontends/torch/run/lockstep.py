"""Collectives of a resharding, over the shards that a process has.

`LockStep` has the shards of all devices in one process, which take turns: collectives are sums and
copies in memory. `frontends.torch.run.process_group` has the shard of one device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import shardspec
import torch
from shardspec import Mesh

from frontends.base.present import present
from frontends.errors import InternalError
from frontends.torch.base.calls import Tensor
from frontends.torch.lower.local import Coordinates

Shards = list[Tensor]
"""What the devices of this process hold of a value, in the order of the mesh."""


Wait = Callable[[], list[Shards]]
"""Waits for collectives that were begun: what the devices have of each result."""

Bound = Callable[[Sequence[Shards]], Wait]
"""Begins collectives, from what the devices have of each operand."""


class Collectives(Protocol):
    """Runs collectives on a mesh."""

    mesh: Mesh
    devices: tuple[int, ...]
    """Those of this process, in the order of the mesh."""

    coordinates: tuple[Coordinates, ...]
    """Where they stand in the mesh."""

    def cut(self, step: shardspec.Step, shards: Shards) -> Shards:
        """The devices' shards after a slice, which each device makes alone."""

    def bind(self, steps: Sequence[shardspec.Step]) -> Bound:
        """Steps that run as one: of one kind and reduction, over the same axes.

        Their operands are of one type.
        """


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

    def cut(self, step: shardspec.Step, shards: Shards) -> Shards:
        """The devices' shards after a slice."""
        return self._run(step, shards)

    def bind(self, steps: Sequence[shardspec.Step]) -> Bound:
        """Steps that run one by one, as soon as they begin."""

        def begin(operands: Sequence[Shards]) -> Wait:
            made = [self._run(*pair) for pair in zip(steps, operands, strict=True)]
            return lambda: made

        return begin

    def _run(self, step: shardspec.Step, shards: Shards) -> Shards:
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


def _within_group(step: shardspec.Step, parts: Sequence[Tensor]) -> Sequence[Tensor]:
    """What each member of a group gets, from what each has, in group order."""
    n = len(parts)
    if step.kind == "all_reduce":
        return [_combined(step, parts)] * n
    if step.kind == "all_gather":
        return [torch.cat(list(parts), dim_of(step))] * n
    if step.kind == "reduce_scatter":
        return [_combined(step, [part_of(p, dim_of(step), i, n) for p in parts]) for i in range(n)]
    if step.kind == "all_to_all":
        cut = present(step.to_dim, "an all-to-all cuts a dim")
        return [torch.cat([part_of(p, cut, i, n) for p in parts], dim_of(step)) for i in range(n)]
    if step.kind != "slice":
        raise InternalError(f"a step is a collective or a slice; got {step}")
    # aten's norms read their saved statistics as if they were contiguous, whatever their strides
    return [part_of(part, dim_of(step), i, n).contiguous() for i, part in enumerate(parts)]


def _combined(step: shardspec.Step, parts: Sequence[Tensor]) -> Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        if step.reduction == "max":
            torch.maximum(total, part, out=total)
        elif step.reduction == "min":
            torch.minimum(total, part, out=total)
        elif step.reduction in ("sum", None):
            total += part
        else:
            raise InternalError(f"what shards are made of is summed or compared; got {step}")
    return total


def dim_of(step: shardspec.Step) -> int:
    """The dim that a step cuts or joins."""
    return present(step.dim, "whole axes are converted along one dim")


def part_of(tensor: Tensor, dim: int, place: int, n: int) -> Tensor:
    """One of `n` equal parts of a tensor along a dim."""
    size = tensor.shape[dim] // n
    return tensor.narrow(dim, place * size, size)
