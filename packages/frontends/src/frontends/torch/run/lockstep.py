"""Collectives on the shards of a process.

`LockStep` has the shards of all devices of a mesh in one process, so that collectives are sums and
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
from frontends.torch.lower.local import Coordinates, part_of

Shards = list[Tensor]
"""The shards of a value on the devices of this process, in the order of the mesh."""


Wait = Callable[[], list[Shards]]
"""Waits for collectives that were begun; returns the shards of each result."""

Bound = Callable[[Sequence[Shards]], Wait]
"""Begins collectives, given the shards of each operand."""


class Collectives(Protocol):
    """Runs collectives on a mesh."""

    mesh: Mesh
    devices: tuple[int, ...]
    """The devices of this process, in the order of the mesh."""

    coordinates: tuple[Coordinates, ...]
    """The coordinates of these devices in the mesh."""

    def bind(self, steps: Sequence[shardspec.Step]) -> Bound:
        """Return a function that begins collectives together, as a bucket.

        Args:
            steps: Collectives of one kind and reduction, over the same axes, on operands of one
                type.
        """


class LockStep:
    """All devices of a mesh in one process.

    Devices with equal shards share one tensor, to which nothing writes.

    Args:
        mesh: The mesh of the stage.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.devices: tuple[int, ...] = tuple(mesh.device_ids)
        self.coordinates: tuple[Coordinates, ...] = tuple(map(mesh.coordinates, self.devices))
        self._position = {device: i for i, device in enumerate(self.devices)}

    def bind(self, steps: Sequence[shardspec.Step]) -> Bound:
        """Return a function that runs collectives one by one; their results are there at once."""

        def begin(operands: Sequence[Shards]) -> Wait:
            results = [self._run(*pair) for pair in zip(steps, operands, strict=True)]
            return lambda: results

        return begin

    def _run(self, step: shardspec.Step, shards: Shards) -> Shards:
        computed: dict[tuple[int, ...], Sequence[Tensor]] = {}
        results: Shards = list(shards)
        for group in step.groups:
            members = [self._position[device] for device in group]
            parts = [shards[i] for i in members]
            same = tuple(map(id, parts))
            if same not in computed:
                computed[same] = _within_group(step, parts)
            for i, shard in zip(members, computed[same], strict=True):
                results[i] = shard
        return results


def _within_group(step: shardspec.Step, parts: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the result of each member of a group, from the operands of all, in group order."""
    n = len(parts)
    if step.kind == "all_reduce":
        return [_combined(step, parts)] * n
    if step.kind == "all_gather":
        return [torch.cat(list(parts), dim_of(step))] * n
    if step.kind == "reduce_scatter":
        return [_combined(step, [part_of(p, dim_of(step), i, n) for p in parts]) for i in range(n)]
    if step.kind == "all_to_all":
        cut = present(step.to_dim, "an all-to-all splits a dim")
        return [torch.cat([part_of(p, cut, i, n) for p in parts], dim_of(step)) for i in range(n)]
    if step.kind == "collective_permute":
        return [parts[i - 1] for i in range(n)]
    raise InternalError(f"devices of a group communicate by collectives; got {step}")


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
            raise InternalError(f"a reduction is a sum, a maximum or a minimum; got {step}")
    return total


def dim_of(step: shardspec.Step) -> int:
    """Return the dim that a step splits or concatenates."""
    return present(step.dim, "whole axes are converted along one dim")
