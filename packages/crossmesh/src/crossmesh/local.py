"""The local transport: all devices are in this process, so a task is a copy in memory."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from crossmesh._native import core
from crossmesh.errors import ShardError
from crossmesh.plan import TransferPlan

Array = npt.NDArray[np.generic]


class LocalTransport:
    """Executes one plan any number of times; what does not depend on the data is computed once.

    Each unit task is executed from its chosen sender. Destination devices that hold equal shards
    share one array, so a replicated tensor is written once however many devices receive it.
    """

    def __init__(self, plan: TransferPlan) -> None:
        self._plan = plan
        self._shapes = {device: plan.src.local_shape(device) for device in plan.src.mesh.device_ids}
        self._buffer_of: dict[int, int] = {}
        buffers: dict[tuple[tuple[int, int], ...], int] = {}
        for device in plan.dst.mesh.device_ids:
            box = tuple((part.start, part.stop) for part in plan.dst.slices(device))
            self._buffer_of[device] = buffers.setdefault(box, len(buffers))
        self._buffer_shapes = [tuple(stop - start for start, stop in box) for box in buffers]

        # Keyed by buffer and slice: tasks of several hosts or receivers may fill the same buffer.
        copies = {}
        for task in plan.tasks:
            start = [begin for begin, _ in task.slices]
            src_start = _relative(start, plan.src.slices(task.sender))
            for receiver in task.receivers:
                dst_start = _relative(start, plan.dst.slices(receiver))
                buffer = self._buffer_of[receiver]
                copies[buffer, task.slices] = (
                    buffer,
                    dst_start,
                    task.sender,
                    src_start,
                    task.extent,
                )
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
        buffers = [np.empty(shape, dtype) for shape in self._buffer_shapes]
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
                    f"which holds {shape} of {self._plan.shape} as {self._plan.src.spec}"
                )
        dtypes = {str(shards[device].dtype): shards[device].dtype for device in self._shapes}
        if len(dtypes) > 1:
            raise ShardError(f"all shards have one dtype; got {sorted(dtypes)}")
        (dtype,) = dtypes.values()
        if dtype.itemsize != self._plan.itemsize or dtype.hasobject:
            raise ShardError(
                f"shards hold plain elements of {self._plan.itemsize} bytes, as planned; "
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
        >>> from crossmesh import plan_transfer
        >>> rows = Layout((2, 2), Mesh((2,), ("x",), (0, 1)), Spec.parse("S0R"))
        >>> whole = Layout((2, 2), Mesh((1,), ("x",), (2,)), Spec.parse("RR"))
        >>> plan = plan_transfer(rows, whole, itemsize=8)
        >>> execute_local(plan, {0: np.array([[1.0, 2.0]]), 1: np.array([[3.0, 4.0]])})[2]
        array([[1., 2.],
               [3., 4.]])
    """
    return LocalTransport(plan)(shards)


def _relative(start: list[int], slices: tuple[slice, ...]) -> tuple[int, ...]:
    return tuple(begin - part.start for begin, part in zip(start, slices, strict=True))
