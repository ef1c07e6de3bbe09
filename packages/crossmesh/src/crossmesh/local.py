"""The local transport: all devices are in this process, so a task is a copy in memory."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from crossmesh._native import core
from crossmesh.errors import ShardError
from crossmesh.geometry import Box, Runs
from crossmesh.plan import TransferPlan

Array = npt.NDArray[np.generic]


class LocalTransport:
    """Executes one plan any number of times; what does not depend on the data is computed once.

    Each unit task is executed from its chosen sender. Destination devices that hold equal shards
    share one array, so a replicated tensor is written once however many devices receive it.
    """

    def __init__(self, plan: TransferPlan) -> None:
        (tensor,) = plan.tensors
        self._tensor = tensor
        src, dst = tensor.src, tensor.dst
        if any(task.reduction for task in plan.tasks):
            raise ShardError(
                "this transport copies, it cannot add up partial results; "
                f"got the source spec {src.spec}; reduce on that mesh before"
            )
        self._shapes = {device: src.local_shape(device) for device in src.mesh.device_ids}
        self._buffer_of: dict[int, int] = {}
        buffers: dict[tuple[Runs, tuple[int, ...]], int] = {}
        for device in dst.mesh.device_ids:
            held = dst.runs(device), dst.local_shape(device)
            self._buffer_of[device] = buffers.setdefault(held, len(buffers))
        self._buffer_shapes = [shape for _, shape in buffers]

        # Keyed by buffer and box: tasks of several hosts or receivers may fill the same buffer, and
        # the parts of a task are not told apart.
        moves = [(task.sender, task.receivers, task.pieces) for task in plan.tasks]
        moves += [(copy.device, (copy.device,), copy.pieces) for copy in plan.copies]
        copies = {}
        for sender, receivers, pieces in moves:
            for _, box in pieces:
                src_start = _local_start(box, src.runs(sender))
                extent = tuple(stop - start for start, stop in box)
                for receiver in receivers:
                    dst_start = _local_start(box, dst.runs(receiver))
                    buffer = self._buffer_of[receiver]
                    copies[buffer, box] = (buffer, dst_start, sender, src_start, extent)
        self._copies = tuple(copies.values())

    def __call__(self, shards: Mapping[int, Array]) -> dict[int, Array]:
        """Move one tensor.

        Args:
            shards: Each source device's shard, of any strides; not changed, not kept. Arrays of
                Python objects are refused, as their bytes are references.

        Returns:
            Each destination device's shard in the order of its mesh: new C-contiguous arrays of the
            same dtype. Devices with equal shards get the same array.

        Raises:
            ShardError: a shard is missing, of no source device, or has the wrong shape or dtype.
        """
        dtype = self._check(shards)
        new = np.zeros if "padded" in self._tensor.dst.rules else np.empty
        buffers = [new(shape, dtype) for shape in self._buffer_shapes]
        for buffer, dst_start, sender, src_start, extent in self._copies:
            core.copy_box(buffers[buffer], dst_start, shards[sender], src_start, extent)
        return {device: buffers[buffer] for device, buffer in self._buffer_of.items()}

    def _check(self, shards: Mapping[int, Array]) -> np.dtype[np.generic]:
        if shards.keys() != self._shapes.keys():
            raise ShardError(
                "shards has one array for each device of the source mesh; "
                f"got {list(shards)} for {list(self._shapes)}"
            )
        for device, shape in self._shapes.items():
            shard = shards[device]
            if not isinstance(shard, np.ndarray) or shard.shape != shape:
                got = shard.shape if isinstance(shard, np.ndarray) else type(shard).__name__
                raise ShardError(
                    f"a shard is a numpy array of its local shape; got {got} for device {device}, "
                    f"which holds {shape} of {self._tensor.src}"
                )
        dtypes = {str(shards[device].dtype): shards[device].dtype for device in self._shapes}
        if len(dtypes) > 1:
            raise ShardError(f"all shards have one dtype; got {sorted(dtypes)}")
        (dtype,) = dtypes.values()
        if dtype.itemsize != self._tensor.item_bytes or dtype.hasobject:
            raise ShardError(
                f"shards hold plain elements of {self._tensor.item_bytes} bytes, as planned; "
                f"got dtype {dtype} of {dtype.itemsize} bytes"
            )
        return dtype


def execute_local(plan: TransferPlan, shards: Mapping[int, Array]) -> dict[int, Array]:
    """Move one tensor inside this process; `LocalTransport` is faster for many with one plan.

    Args:
        plan: What goes where.
        shards: Each source device's shard, of any strides.

    Returns:
        Each destination device's shard: new C-contiguous arrays; devices with equal shards get the
        same array.

    Raises:
        ShardError: a shard is missing, of no source device, or has the wrong shape or dtype.

    Examples:
        >>> from shardspec import Layout, Mesh, Spec
        >>> from crossmesh import plan
        >>> rows = Layout((2, 2), Mesh((2,), ("x",), (0, 1)), Spec.parse("S0R"))
        >>> whole = Layout((2, 2), Mesh((1,), ("x",), (2,)), Spec.parse("RR"))
        >>> shards = {0: np.array([[1.0, 2.0]]), 1: np.array([[3.0, 4.0]])}
        >>> execute_local(plan(rows, whole, "float64"), shards)[2]
        array([[1., 2.],
               [3., 4.]])
    """
    return LocalTransport(plan)(shards)


def _local_start(box: Box, runs: Runs) -> tuple[int, ...]:
    """Where a box that lies in a shard starts in the array of the shard."""
    starts = []
    for (start, _), of_dim in zip(box, runs, strict=True):
        before = sum(b - a for a, b in of_dim if b <= start)
        starts.append(before + next(start - a for a, b in of_dim if a <= start < b))
    return tuple(starts)
