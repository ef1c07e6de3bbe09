"""`execute_batched`: executes a plan in batches of messages, on tensors that stay on their device.

It serves process groups that cannot send messages between CPUs, such as those of NCCL. There a
message occupies the device from its beginning until both sides are done, and messages run in the
order in which they were begun. `execute` does not fit such a group, because it begins receives
early and asks which of them have arrived.

Here each message has a step, which follows from the plan alone: if a task begins at step `s`, its
chunk `i` passes leg `j` of its route at step `s + i + j`. In a chain this makes a pipeline: chunk
`i` is passed on while chunk `i + 1` arrives. All messages that a rank sends and receives in one
step are a batch (`dist.batch_isend_irecv`, which NCCL executes together).

No batch waits forever: bytes that are sent at a step have arrived at earlier steps, and a message
has the same step on both its ranks. Consider the first step that is not complete: all its batches
have begun, and they contain all that they need of each other. It would not be enough that messages
are in the same order on all ranks: within a batch any message may wait for any other, and NCCL does
not specify what happens when ranks group their messages differently
(github.com/NVIDIA/nccl/issues/1279).
"""

import contextlib
import hashlib
import heapq
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from shardspec import Layout

from crossmesh.base.reasons import REASON_BYTES, error_of, reason_of
from crossmesh.base.task import Piece, UnitTask
from crossmesh.base.whole import whole_number
from crossmesh.errors import (
    MismatchError,
    MissingExtraError,
    PlanError,
    ShardError,
    TransportError,
)
from crossmesh.run.packing import BoxOffsets
from crossmesh.transfer.arrays import check_written
from crossmesh.transfer.messages import Leg, MessageChunk, program
from crossmesh.transfer.plan import TransferPlan

try:
    import torch
    import torch.distributed as dist
except ImportError:
    raise MissingExtraError("crossmesh.engines.torch_batched", "torch") from None

from crossmesh.engines.torch_dtypes import check_plain, name_of, span


class BatchedMessage(NamedTuple):
    """A chunk on one of its legs."""

    chunk: MessageChunk
    leg: Leg


def batches(plan: TransferPlan, device: int, window: int) -> list[list[BatchedMessage]]:
    """The messages from and to a device, batch by batch, each batch in the order of the program.

    Args:
        plan: A plan of plain copies, so that each chunk passes all devices of its task.
        device: The device.
        window: The most tasks that a device has messages of at a time; the same on all ranks.
    """
    first = _first_steps(plan, window)
    at: defaultdict[int, list[BatchedMessage]] = defaultdict(list)
    for _, chunks in itertools.groupby(program(plan, {device}), lambda chunk: chunk.task.index):
        for i, chunk in enumerate(chunks):
            for j, leg in enumerate(chunk.legs):
                if device in (leg.sender, leg.receiver):
                    at[first[chunk.task.index] + i + j].append(BatchedMessage(chunk, leg))
    return [at[step] for step in sorted(at)]


def _first_steps(plan: TransferPlan, window: int) -> list[int]:
    """The step at which each task begins: once all its devices have fewer than `window` open."""
    steps = []
    open_until: defaultdict[int, list[int]] = defaultdict(list)  # a heap for each device
    for task in plan.tasks:
        of_devices = [open_until[device] for device in task.path]
        first = max((heap[0] for heap in of_devices if len(heap) == window), default=0)
        # An all-gather may have up to one more chunk for each follower.
        stop = first + task.n_chunks + 2 * len(task.followers)
        for heap in of_devices:
            if len(heap) == window:
                heapq.heapreplace(heap, stop)
            else:
                heapq.heappush(heap, stop)
        steps.append(first)
    return steps


def execute_batched(
    plan: TransferPlan,
    src: Mapping[str, torch.Tensor],
    dst: Mapping[str, torch.Tensor],
    group: dist.ProcessGroup,
    *,
    window: int,
) -> None:
    """Move tensors between ranks, on the device that they are on; all ranks call it together.

    It is tested with gloo on CPUs, and the order of its messages is tested by itself against the
    rules of NCCL. It has not been run on NCCL yet, which takes two GPUs. There it returns when all
    messages have begun, as torch's collectives do, and later work in the current stream waits for
    them.

    Args:
        plan: The plan; its devices are global ranks. It has no partial sources.
        src: This rank's source shard of each tensor; none if the rank is not in the source mesh.
        dst: The tensors for this rank's destination shards; they share no memory with `src`.
        group: Has all ranks of the plan. Its timeout is the deadline: when it passes, gloo raises
            an error, and NCCL ends the process (TORCH_NCCL_ASYNC_ERROR_HANDLING).
        window: The most tasks that a rank sends or receives messages of at a time, and keeps in
            staging memory; the same on all ranks.

    Raises:
        PlanError: The plan has partial sources or the strategy "signal", `window` is below 1, or a
            rank of the plan is not in the group.
        ShardError: A tensor is missing, has another shape or dtype than planned, or shares memory
            that is written. On ranks whose tensors fit, it is a RankShardError. All ranks raise it
            before anything moves.
        RankError: Another rank raised an error.
        MismatchError: Ranks have different plans or windows.
        TransportError: The group failed; the error's `invalid` lists the destinations that may be
            partly written.
    """
    rank = dist.get_rank()
    try:
        _check(plan, window, group)
        batched = _Batched(plan, src, dst, rank)
    except Exception as error:
        refuse_batched(group, error)
        raise
    digest = hashlib.sha256(f"{plan.digest} {window}".encode()).digest()
    others = _others(digest + bytes(REASON_BYTES), group)
    for said in others.values():
        if said.startswith(_UNFIT):
            raise error_of(said[len(_UNFIT) :])
    for other, said in others.items():
        raise MismatchError(
            "all ranks execute the same plan with the same window; this one has digest "
            f"{digest.hex()[:16]}, rank {other} of the group has {said.hex()[:16]}; make the plan "
            "from equal arguments everywhere"
        )
    batched.run(window, group)


def refuse_batched(group: dist.ProcessGroup, error: Exception) -> None:
    """Tell all ranks that this one takes no part in a transfer that they are about to begin.

    The others then raise the same as if `execute_batched` had raised `error` here.
    """
    reason = reason_of(dist.get_rank(), error)
    with contextlib.suppress(TransportError):  # the caller raises `error`, which matters more
        _others(_UNFIT + reason.ljust(REASON_BYTES, b"\0"), group)


def _check(plan: TransferPlan, window: int, group: dist.ProcessGroup) -> None:
    if whole_number("window", window) < 1:
        raise PlanError(f"at least one task is open at a time; got window={window}")
    if plan.strategy == "signal" or any(task.reduction for task in plan.tasks):
        raise PlanError(
            "batches move plain copies only; got a plan with the strategy 'signal' or with partial "
            "sources; reduce these on their mesh first, or use execute"
        )
    missing = {device for device, _ in plan.hosts} - {*dist.get_process_group_ranks(group)}
    if missing:
        raise PlanError(
            "the devices of a plan are global ranks of the group; "
            f"it lacks ranks {sorted(missing)[:4]}; make a group that has them"
        )


_UNFIT = bytes(32)
"""A rank that cannot take part sends this instead of a digest, followed by its reason."""


def _others(said: bytes, group: dist.ProcessGroup) -> dict[int, bytes]:
    """The messages of all ranks of the group whose message is not `said`, by rank.

    They are exchanged by each backend of the group, because the first call of a NCCL backend has to
    involve all ranks (`batch_isend_irecv` in torch's documentation), and batches do not.
    """
    messages: dict[int, bytes] = {}
    for backend in dist.get_backend_config(group).split(","):
        device, _ = backend.split(":")
        if device == "cpu" or torch.get_device_module(device).is_available():
            own = torch.tensor(list(said), dtype=torch.uint8, device=device)
            heard = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
            try:
                dist.all_gather(heard, own, group=group)
            except RuntimeError as error:
                raise group_failed(f"waited for {others_of(group)} to begin", error) from error
            messages |= {rank: bytes(other.tolist()) for rank, other in enumerate(heard)}
    return {rank: other for rank, other in messages.items() if other != said}


def others_of(group: dist.ProcessGroup) -> str:
    """All other ranks of a group, as text; gloo does not tell which of them is missing."""
    ranks = sorted({*dist.get_process_group_ranks(group)} - {dist.get_rank()})
    return f"some of the ranks {ranks}"


def group_failed(meanwhile: str, error: RuntimeError) -> TransportError:
    """The error to raise when a process group fails or its timeout passes."""
    return TransportError(
        f"the process group failed while rank {dist.get_rank()} {meanwhile}: "
        f"{str(error).splitlines()[0]}"
    )


class _Batched:
    """One rank's part of a plan, with the packed bytes of the open tasks."""

    def __init__(
        self,
        plan: TransferPlan,
        src: Mapping[str, torch.Tensor],
        dst: Mapping[str, torch.Tensor],
        rank: int,
    ) -> None:
        self._plan = plan
        self._rank = rank
        self._src = _Shards(plan, src, rank, [tensor.src for tensor in plan.tensors])
        self._dst = _Shards(plan, dst, rank, [tensor.dst for tensor in plan.tensors])
        check_written(
            {(name, rank): (x.shape, x.stride(), span(x)) for name, x in self._dst.of_name.items()},
            map(span, self._src.of_name.values()),
        )
        all_tensors = (*self._src.of_name.values(), *self._dst.of_name.values())
        devices = {tensor.device for tensor in all_tensors}
        if len(devices) > 1:
            raise ShardError(
                f"the shards of a rank are on one device; got {sorted(map(str, devices))}"
            )
        (self._device,) = devices or [torch.device("cpu")]
        self._packed: dict[int, tuple[UnitTask, torch.Tensor]] = {}

    def run(self, window: int, group: dist.ProcessGroup) -> None:
        """Do the local copies, then all batches."""
        for copy in self._plan.copies:
            if copy.device == self._rank:
                for piece in copy.pieces:
                    self._dst.view(piece).copy_(self._src.view(piece))
        todo = batches(self._plan, self._rank, window)
        left = Counter(chunk.task.index for batch in todo for chunk, _ in batch)
        for batch in todo:
            operations = [
                dist.P2POp(
                    dist.isend if leg.sender == self._rank else dist.irecv,
                    self._bytes(chunk),
                    leg.receiver if leg.sender == self._rank else leg.sender,
                    group,
                )
                for chunk, leg in batch
            ]
            try:
                for work in dist.batch_isend_irecv(operations):
                    work.wait()  # until the group's timeout
            except RuntimeError as error:
                peers = sorted({operation.peer for operation in operations})
                failed = group_failed(f"exchanged {batch[0].chunk} with ranks {peers}", error)
                failed.invalid = tuple((name, self._rank) for name in self._dst.of_name)
                raise failed from error
            left.subtract(chunk.task.index for chunk, _ in batch)
            for index in {chunk.task.index for chunk, _ in batch}:
                if not left[index]:
                    self._unpack(*self._packed.pop(index))

    def _bytes(self, chunk: MessageChunk) -> torch.Tensor:
        task = chunk.task
        if task.index not in self._packed:
            data = torch.empty(task.n_bytes, dtype=torch.uint8, device=self._device)
            if task.sender == self._rank:
                for piece, elements, part in self._pieces(task):
                    data[part] = _bytes(self._src.view(piece).contiguous())[elements]
            self._packed[task.index] = task, data
        first = task.part[0]
        return self._packed[task.index][1][chunk.part[0] - first : chunk.part[1] - first]

    def _unpack(self, task: UnitTask, data: torch.Tensor) -> None:
        """Copy the bytes that have arrived to the destination, if this rank is a receiver."""
        if self._rank in task.receivers:
            for piece, elements, part in self._pieces(task):
                target = self._dst.view(piece)
                whole = target.contiguous()  # the other bytes of the piece keep their values
                _bytes(whole)[elements] = data[part]
                if not target.is_contiguous():
                    target.copy_(whole)

    def _pieces(self, task: UnitTask) -> Iterator[tuple[Piece, slice, slice]]:
        """The pieces of a task, each with the bytes of it that the task moves.

        Yields the piece, the slice of its bytes, and the slice of the task's bytes.
        """
        start, stop = task.part
        tensors = self._plan.tensors
        sizes = [
            math.prod(b - a for a, b in piece.box) * tensors[piece.tensor].item_bytes
            for piece in task.pieces
        ]
        for piece, (a, b) in zip(
            task.pieces, itertools.pairwise(itertools.accumulate(sizes, initial=0)), strict=True
        ):
            if max(a, start) < min(b, stop):
                inside = slice(max(a, start) - a, min(b, stop) - a)
                yield piece, inside, slice(max(a, start) - start, min(b, stop) - start)


class _Shards:
    """One rank's source or destination tensors, and the positions of pieces in them."""

    def __init__(
        self,
        plan: TransferPlan,
        tensors: Mapping[str, torch.Tensor],
        rank: int,
        layouts: list[Layout],
    ) -> None:
        if not isinstance(tensors, Mapping):
            raise ShardError(f"shards are tensors by name; got {type(tensors).__name__}")
        self._of: dict[int, tuple[torch.Tensor, BoxOffsets]] = {}
        self.of_name: dict[str, torch.Tensor] = {}
        for i, (layout, planned) in enumerate(zip(layouts, plan.tensors, strict=True)):
            tensor = tensors.get(planned.name)
            if tensor is not None:
                check_plain(planned.name, tensor)
            needed = layout.local_shape(rank) if rank in layout.mesh.device_ids else None
            shape = None if tensor is None else tuple(tensor.shape)
            if shape != needed:
                raise ShardError(
                    "each rank passes the shards of the layouts that it is in; "
                    f"got shape {shape} instead of {needed} for {planned.name!r} on rank {rank}"
                )
            if tensor is not None:
                if name_of(tensor.dtype) != planned.dtype:
                    raise ShardError(
                        f"shards have the dtype that is planned; got {tensor.dtype} instead of "
                        f"{planned.dtype} for {planned.name!r} on rank {rank}; convert the shards, "
                        "or plan for their dtype"
                    )
                self.of_name[planned.name] = tensor.detach()
                self._of[i] = self.of_name[planned.name], BoxOffsets(layout, rank)

    def view(self, piece: Piece) -> torch.Tensor:
        """The view of a piece in its tensor."""
        tensor, places = self._of[piece.tensor]
        return tensor[places.slices(piece.box)]


def _bytes(contiguous: torch.Tensor) -> torch.Tensor:
    return contiguous.view(-1).view(torch.uint8)
