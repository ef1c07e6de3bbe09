"""Transfers between the devices of one process, in which each task is a copy in memory."""

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple, overload

from crossmesh.base._native import core
from crossmesh.base.geometry import Box
from crossmesh.run.executor import execute
from crossmesh.run.packing import Array, BoxOffsets
from crossmesh.run.transport import Bytes, Pending
from crossmesh.transfer import arrays
from crossmesh.transfer.arrays import Shards
from crossmesh.transfer.plan import TransferPlan

_LONG_S = 86400.0
"""The deadline for copies in memory, which never wait for another process."""


class LocalTransport:
    """Executes one plan any number of times; what does not depend on the data is computed once.

    Each piece is copied once from its chosen sender to each receiver, from array to array. Plans
    with partial sources are executed by `execute`, so the results are equal bit for bit.

    Args:
        plan: The plan.
        share: Whether destination devices with equal shards get the same array, so that a
            replicated tensor is written once however many devices receive it. Where partial results
            are combined, each device gets an array of its own.
    """

    def __init__(self, plan: TransferPlan, *, share: bool = False) -> None:
        self._plan = plan
        self._shapes = [arrays.shapes(t.src, t.src.mesh.device_ids) for t in plan.tensors]
        self._alone = _Alone(plan)
        self._direct = plan.strategy != "signal" and not any(t.reduction for t in plan.tasks)
        if self._direct:
            self._buffers, self._buffer_of = _buffers(plan, share)
            self._copies = _copies(plan, self._buffer_of)

    @overload
    def __call__(self, shards: Mapping[int, Array]) -> dict[int, Array]: ...
    @overload
    def __call__(
        self, shards: Mapping[str, Mapping[int, Array]]
    ) -> dict[str, dict[int, Array]]: ...
    def __call__(self, shards: Shards) -> dict[int, Array] | dict[str, dict[int, Array]]:
        """Move the tensors.

        Args:
            shards: Each source device's shard, with any strides: {device: array}, or {name:
                {device: array}} for a plan of several tensors. They are neither changed nor kept.
                Arrays of Python objects are refused, because their bytes are references.

        Returns:
            Each destination device's shard in the order of its mesh, by name if `shards` is by
            name: new C-contiguous arrays of the same dtype, aligned to 64 bytes. For a plan with
            the strategy "signal", the content that would have been sent is undefined.

        Raises:
            ShardError: A shard is missing, belongs to no source device, or has another shape or
                dtype than planned.
        """
        plan = self._plan
        if not self._direct:  # with one rank nothing waits, so the window does not matter
            return execute(plan, shards, self._alone, window=1, deadline_s=_LONG_S)
        named = arrays.by_name(plan, shards)
        sources = [named[tensor.name] for tensor in plan.tensors]
        for tensor, shapes, of_tensor in zip(plan.tensors, self._shapes, sources, strict=True):
            arrays.check(tensor, tensor.src, shapes, of_tensor)
        dtypes = [arrays.dtype_of(*pair) for pair in zip(plan.tensors, sources, strict=True)]
        targets = [
            arrays.new(plan.tensors[b.tensor], b.shape, dtypes[b.tensor]) for b in self._buffers
        ]
        for buffer, dst_start, tensor_index, sender, src_start, extent in self._copies:
            source = sources[tensor_index][sender]
            core.copy_box(targets[buffer], dst_start, source, src_start, extent)
        received: list[dict[int, Array]] = [{} for _ in plan.tensors]
        for (i, device), buffer in self._buffer_of.items():
            received[i][device] = targets[buffer]
        if arrays.has_names(plan, shards):
            return {tensor.name: received[i] for i, tensor in enumerate(plan.tensors)}
        return received[0]


Place = tuple[int, int]
"""A tensor's index and a device."""


class _Buffer(NamedTuple):
    """An array to be allocated, for one destination shard or for several that are equal."""

    tensor: int
    shape: tuple[int, ...]


class _BoxCopy(NamedTuple):
    """The arguments of a call of `copy_box`."""

    buffer: int
    dst_start: tuple[int, ...]
    tensor: int
    sender: int
    src_start: tuple[int, ...]
    extent: tuple[int, ...]


def _buffers(plan: TransferPlan, share: bool) -> tuple[list[_Buffer], dict[Place, int]]:
    """All arrays to be allocated, and the index of the one for each destination shard."""
    buffers: list[_Buffer] = []
    buffer_of: dict[Place, int] = {}
    known: dict[object, int] = {}
    for i, tensor in enumerate(plan.tensors):
        for device in tensor.dst.mesh.device_ids:
            shape = tensor.dst.local_shape(device)
            equal = i, (tensor.dst.runs(device), shape) if share else device
            buffer_of[i, device] = known.setdefault(equal, len(buffers))
            if buffer_of[i, device] == len(buffers):
                buffers.append(_Buffer(i, shape))
    return buffers, buffer_of


def _copies(plan: TransferPlan, buffer_of: Mapping[Place, int]) -> tuple[_BoxCopy, ...]:
    src = cache(lambda i, device: BoxOffsets(plan.tensors[i].src, device))
    dst = cache(lambda i, device: BoxOffsets(plan.tensors[i].dst, device))
    moves = [(task.sender, task.receivers, task.pieces) for task in plan.tasks]
    moves += [(copy.device, (copy.device,), copy.pieces) for copy in plan.copies]
    # Keyed by buffer and box, so that each box of a buffer is copied once: tasks for several
    # receivers may fill the same buffer, and tasks that move parts of the same pieces have the same
    # boxes.
    copies: dict[tuple[int, Box], _BoxCopy] = {}
    for sender, receivers, pieces in moves:
        for i, box in pieces:
            src_start = src(i, sender).start(box)
            extent = tuple(stop - start for start, stop in box)
            for receiver in receivers:
                buffer = buffer_of[i, receiver]
                start = dst(i, receiver).start(box)
                copies[buffer, box] = _BoxCopy(buffer, start, i, sender, src_start, extent)
    return tuple(copies.values())


class _Alone:
    """A transport with one rank, which has all devices of a plan."""

    rank = 0
    n_ranks = 1

    def __init__(self, plan: TransferPlan) -> None:
        self.rank_of = {device: 0 for device, _ in plan.hosts}

    def send(self, rank: int, data: Bytes, tag: int) -> Pending:
        raise AssertionError("a transport with one rank has no other rank")

    receive = send

    def pause(self) -> None:
        """Do nothing; there is never anything to wait for."""

    def close(self) -> None:
        """Do nothing; there is never anything to give up."""


@overload
def execute_local(
    plan: TransferPlan, shards: Mapping[int, Array], *, share: bool = False
) -> dict[int, Array]: ...
@overload
def execute_local(
    plan: TransferPlan, shards: Mapping[str, Mapping[int, Array]], *, share: bool = False
) -> dict[str, dict[int, Array]]: ...
def execute_local(
    plan: TransferPlan, shards: Shards, *, share: bool = False
) -> dict[int, Array] | dict[str, dict[int, Array]]:
    """Move tensors inside this process; `LocalTransport` is faster for many transfers of one plan.

    Args:
        plan: The plan.
        shards: Each source device's shard, with any strides: {device: array}, or {name: {device:
            array}} for a plan of several tensors.
        share: Whether devices with equal shards get the same array.

    Returns:
        Each destination device's shard, by name if `shards` is by name: new C-contiguous arrays.

    Raises:
        ShardError: A shard is missing, belongs to no source device, or has another shape or dtype
            than planned.

    Examples:
        >>> import numpy as np
        >>> from shardspec import Layout, Mesh, Spec
        >>> from crossmesh import plan
        >>> rows = Layout((2, 2), Mesh((2,), ("x",), (0, 1)), Spec.parse("S0R"))
        >>> whole = Layout((2, 2), Mesh((1,), ("x",), (2,)), Spec.parse("RR"))
        >>> shards = {0: np.array([[1.0, 2.0]]), 1: np.array([[3.0, 4.0]])}
        >>> execute_local(plan(rows, whole, "float64"), shards)[2]
        array([[1., 2.],
               [3., 4.]])
    """
    return LocalTransport(plan, share=share)(shards)
