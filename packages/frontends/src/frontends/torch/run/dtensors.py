"""Converts a process's shards to DTensors, which other tools of PyTorch read and write."""

from __future__ import annotations

import torch
import torch.distributed as dist
from autoshard import Graph
from shardspec import Layout, Mesh, NotationError
from shardspec.notation.torch import to_placements
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from frontends.answer.plan import Plan
from frontends.errors import PlanError
from frontends.program.instructions import Key
from frontends.torch.base.calls import Tensor
from frontends.torch.rules.parts import contiguous_strides


class DTensors:
    """Converts a plan's shards to DTensors.

    All processes have to create this object together, as it creates process groups.

    Args:
        plan: Has the layouts of tensors.
        graph: Has the shapes of tensors.

    Raises:
        PlanError: This process is alone.
    """

    def __init__(self, plan: Plan, graph: Graph) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise PlanError(
                "a DTensor holds the shard of one of several processes; this process is alone and "
                "has all devices: take whole tensors, by state_dict(), or start it by torchrun"
            )
        self._plan, self._graph = plan, graph
        self._meshes: dict[Mesh, DeviceMesh] = {}
        for stage in plan.stages:
            if stage.mesh not in self._meshes:
                self._meshes[stage.mesh] = device_mesh(stage.mesh)

    def check_order(self) -> None:
        """Check that DTensors can be gathered: torch orders a group by rank, whatever the mesh.

        Raises:
            PlanError: Ranks do not ascend along an axis of a mesh.
        """
        for mesh in self._meshes:
            check_rising(mesh)

    def of(self, key: Key, shard: Tensor) -> DTensor:
        """Return a shard as a DTensor, which shares its memory.

        Args:
            key: The stage and layout of a value of the state.
            shard: This process's shard of it.

        Raises:
            PlanError: DTensor has no placements for its layout.
        """
        stage, slot, _ = key
        mesh = self._plan.stages[stage].mesh
        layout = Layout(self._graph.value(slot.value).shape, mesh, slot.spec)
        return as_dtensor(slot.value, layout, self._meshes[mesh], shard)


def as_dtensor(name: str, layout: Layout, mesh: DeviceMesh, shard: Tensor) -> DTensor:
    """Return a process's shard as a DTensor.

    Args:
        name: The tensor's name, for errors.
        layout: The layout of the tensor.
        mesh: The layout's mesh as a `DeviceMesh`.
        shard: This process's shard.

    Raises:
        PlanError: DTensor has no placements for the layout.
    """
    try:
        placements = to_placements(layout)
    except NotationError as error:
        raise PlanError(
            f"DTensor has placements for the layout of a tensor; it has none for {name}, {layout}: "
            f"{error}; take it whole, by state_dict()"
        ) from error
    dtensor: DTensor = DTensor.from_local(
        shard,
        mesh,
        placements,
        run_check=False,
        shape=torch.Size(layout.shape),
        stride=tuple(contiguous_strides(layout.shape)),
    )
    return dtensor


def check_rising(mesh: Mesh) -> None:
    """Check that the device numbers of a mesh ascend along each axis.

    Raises:
        PlanError: They do not.
    """
    for axis in range(mesh.ndim):
        for group in mesh.groups((axis,)):
            if list(group) != sorted(group):
                raise PlanError(
                    "DTensor gathers shards in the order of ranks, so that ranks must ascend along "
                    f"each axis of a mesh; got {mesh.device_ids} in the shape {mesh.shape}, with "
                    f"{tuple(group)} along axis {axis}: take whole tensors, by state_dict()"
                )


def device_mesh(mesh: Mesh) -> DeviceMesh:
    """Return a mesh whose devices are ranks as a `DeviceMesh`; all processes have to call it."""
    ranks = torch.tensor(list(mesh.device_ids)).view(mesh.shape)
    return DeviceMesh("cpu", ranks, mesh_dim_names=mesh.axis_names)
