"""`redistribute`, `transfer_state_dict`: move DTensors to other meshes, which torch itself cannot.

`Publisher` and `Subscriber` (crossmesh.sync) keep the weights of another job up to date.

The devices of a plan are global ranks. Shards are read and written where their DTensors keep them.
A `Transport` needs them in host memory, so shards on other devices than CPUs are copied there; with
a process group they stay on their devices.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy.typing as npt
from shardspec import Layout
from shardspec.notation.torch import from_placements

from crossmesh.base.links import Links
from crossmesh.base.reasons import error_of, reason_of
from crossmesh.errors import MissingExtraError, PlanError, ShardError
from crossmesh.run.executor import execute, refuse
from crossmesh.run.transport import Transport
from crossmesh.search.planner import plan
from crossmesh.transfer.plan import TransferPlan

try:
    import torch
    import torch.distributed as dist
    from torch.distributed._functional_collectives import AsyncCollectiveTensor
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import Placement
except ImportError:
    raise MissingExtraError("crossmesh.torch", "torch") from None

from crossmesh.engines.torch_batched import execute_batched, group_failed, others_of, refuse_batched
from crossmesh.engines.torch_dtypes import as_array, check_plain, name_of
from crossmesh.engines.torch_transport import TorchTransport
from crossmesh.sync.publisher import Publication, Publisher
from crossmesh.sync.subscriber import Subscriber
from crossmesh.sync.views import Published, View, cat, stack

__all__ = [
    "Publication",
    "Published",
    "Publisher",
    "Subscriber",
    "TorchTransport",
    "View",
    "cat",
    "plan_state_dict",
    "redistribute",
    "stack",
    "transfer_state_dict",
]

StateDict = Mapping[str, DTensor]


def redistribute(
    dtensor: DTensor,
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    transport: Transport | dist.ProcessGroup,
    *,
    window: int,
    deadline_s: float | None = None,
    hosts: Mapping[int, int] | None = None,
    links: Links | None = None,
) -> DTensor:
    """Move a DTensor to another mesh; `DTensor.redistribute` changes placements on the same mesh.

    All ranks of `transport` call it together, whether they are in a mesh or not; torch gives ranks
    outside a mesh an empty shard. It is not differentiable.

    Args:
        dtensor: The DTensor; its placements may be any that shardspec can express, also uneven,
            strided and partial ones.
        mesh: The new mesh: of other ranks, of the same, or of some of them.
        placements: The new placements, one for each dim of `mesh`; none is partial.
        transport: Connects all ranks of both meshes: a Transport, for `execute`, or a process group
            such as NCCL's, for `execute_batched`.
        window: As in `execute` or `execute_batched`.
        deadline_s: As in `execute`; None for a process group, which has its own timeout.
        hosts: As in `plan`; devices are global ranks.
        links: As in `plan`.

    Returns:
        A new DTensor, contiguous on each rank.

    Raises:
        shardspec.NotationError: No layout can express the placements.
        PlanError: As for `plan` or `execute_batched`; or a Transport comes without a deadline, or a
            process group with one.
        ShardError: A shard has another shape than its DTensor says.
        TransferError: As for `execute` or `execute_batched`.
    """
    shape = dtensor.shape
    layout = from_placements(placements, mesh, shape)
    rank = dist.get_rank()
    # Torch counts negative dims of placements from the last dim of the shard, so also an empty
    # shard needs as many dims as the tensor.
    here = layout.local_shape(rank) if rank in layout.mesh.device_ids else (0,) * (len(shape) or 1)
    local = torch.empty(here, dtype=dtensor.dtype, device=mesh.device_type)
    stride = torch.empty(shape, device="meta").stride()
    moved = DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)
    src, dst = {"tensor": dtensor}, {"tensor": moved}
    planned = plan_state_dict(src, dst, hosts, links)
    transfer_state_dict(src, dst, transport, window=window, deadline_s=deadline_s, planned=planned)
    return moved


def transfer_state_dict(
    src: StateDict | None,
    dst: StateDict | None,
    transport: Transport | dist.ProcessGroup,
    *,
    window: int,
    deadline_s: float | None = None,
    stall_s: float | None = None,
    planned: TransferPlan | None = None,
) -> None:
    """Copy the DTensors of a state dict into those of another one, on any meshes.

    All ranks of `transport` call it together. A rank that has only one of the two state dicts
    passes None for the other one, and a plan; `plan_state_dict` makes it by asking the other ranks.

    Args:
        src: The source tensors; not changed. None: all of them are on other ranks. Their meshes
            have to be the same on all ranks. Slices such as `mesh["tp"]` differ between ranks, so
            use whole meshes.
        dst: The destination tensors, with the same names, shapes and dtypes. None: all of them are
            on other ranks.
        transport: Connects all ranks of all meshes: a Transport, for `execute`, or a process group
            such as NCCL's, for `execute_batched`.
        window: As in `execute` or `execute_batched`.
        deadline_s: As in `execute`; None for a process group, which has its own timeout.
        stall_s: As in `execute`; None for a process group.
        planned: A plan of `plan_state_dict`, which may be used for any number of transfers. None:
            `plan_state_dict` is called.

    Raises:
        shardspec.NotationError: No layout can express the placements.
        PlanError: As for `plan_state_dict` or `execute_batched`; or the plan is of other tensors,
            or a Transport comes without a deadline, or a process group with one.
        ShardError: A value is not a DTensor or has another dtype than planned, or a shard shares
            memory with a source or has another shape than its DTensor says.
        TransferError: As for `execute` or `execute_batched`. The destinations in its `invalid` may
            be partly written, except those on other devices than CPUs that a Transport moves: they
            are unchanged.

        If one rank raises an error, all others raise one, and a Transport is closed, as in
        `execute`.
    """
    by_group = isinstance(transport, dist.ProcessGroup)
    if by_group and stall_s is not None:
        raise PlanError(
            f"a process group has its own timeout, and no stall limit; got {stall_s=} for a "
            f"{type(transport).__name__}: leave it out, or pass a TorchTransport"
        )
    if by_group == (deadline_s is not None):
        raise PlanError(
            "a Transport needs a deadline, and a process group has its own timeout instead; "
            f"got deadline_s={deadline_s} for a {type(transport).__name__}"
        )
    try:
        transfer = plan_state_dict(src, dst) if planned is None else planned
        sources, destinations = _locals(transfer, "src", src), _locals(transfer, "dst", dst)
        sources = {name: local.resolve_conj().resolve_neg() for name, local in sources.items()}
        written = {name: _writable(local, by_group) for name, local in destinations.items()}
        for name, local in (*sources.items(), *written.items()):
            check_plain(name, local)
        on_host = {} if by_group else {name: local.cpu() for name, local in sources.items()}
    except Exception as error:  # other ranks may have begun
        if isinstance(transport, dist.ProcessGroup):
            refuse_batched(transport, error)
        elif deadline_s is not None:
            refuse(transport, error, deadline_s)
        raise
    if isinstance(transport, dist.ProcessGroup):
        execute_batched(transfer, sources, written, transport, window=window)
    elif deadline_s is not None:
        execute(
            transfer,
            _arrays(transfer, on_host),
            transport,
            window=window,
            deadline_s=deadline_s,
            stall_s=stall_s,
            out=_arrays(transfer, written),
        )
    for name, local in destinations.items():
        if written[name] is not local:
            local.copy_(written[name])


def plan_state_dict(
    src: StateDict | None,
    dst: StateDict | None,
    hosts: Mapping[int, int] | None = None,
    links: Links | None = None,
    *,
    group: dist.ProcessGroup | None = None,
    **options: Any,
) -> TransferPlan:
    """The plan of `transfer_state_dict`, from meshes, placements, shapes and dtypes alone.

    Without a group it does not communicate. With one, all its ranks call it together and tell each
    other the layouts of the tensors that they have, so that a rank learns those of another program.

    Args:
        src: The source tensors. None: other ranks of `group` have them.
        dst: The destination tensors, with the same names, shapes and dtypes. None: other ranks have
            them.
        hosts: As in `plan`; devices are global ranks.
        links: As in `plan`.
        group: The ranks that exchange layouts, such as `dist.group.WORLD`; not the group of a
            transport.
        options: Further arguments of `plan`.

    Raises:
        shardspec.NotationError: No layout can express the placements.
        PlanError: Names, shapes or dtypes differ, no rank has one of the sides, or as for `plan`.
        ShardError: A value is not a DTensor.
        RankError: Another rank of the group raised an error for its tensors.
        TransportError: The group failed, or its timeout passed.
    """
    source = destination = None
    failed: Exception | None = None
    try:
        source, destination = (None if s is None else _described(s) for s in (src, dst))
    except Exception as error:
        failed = error
    if group is not None:
        reason = None if failed is None else reason_of(dist.get_rank(), failed)
        known: list[Any] = [None] * dist.get_world_size(group)
        try:
            dist.all_gather_object(known, (source, destination, reason), group=group)
        except RuntimeError as error:
            meanwhile = f"waited for {others_of(group)} to call plan_state_dict"
            raise group_failed(meanwhile, error) from error
        # Take each side from the first rank that has it; `execute` detects ranks that differ.
        source, destination, reason = (
            next(filter(None, said), None) for said in zip(*known, strict=True)
        )
        if failed is None and reason is not None:
            raise error_of(reason)
    if failed is not None:
        raise failed
    if source is None or destination is None:
        raise PlanError(
            "a plan needs a source and a destination; "
            f"got None as {'src' if source is None else 'dst'}; "
            "pass a group with a rank that has it"
        )
    for name, dtype in source.dtypes.items():
        if destination.dtypes.get(name, dtype) != dtype:
            raise PlanError(
                f"a transfer does not convert elements; got {dtype} at the source and "
                f"{destination.dtypes[name]} at the destination for {name!r}; convert it first"
            )
    return plan(source.layouts, destination.layouts, source.dtypes, hosts, links, **options)


class _Side(NamedTuple):
    """The layouts and dtypes of a state dict, by name."""

    layouts: dict[str, Layout]
    dtypes: dict[str, str]


def _described(state: StateDict) -> _Side:
    if not isinstance(state, Mapping):
        raise ShardError(f"a state dict is DTensors by name; got {type(state).__name__}")
    layouts = {name: _layout(name, dtensor) for name, dtensor in state.items()}
    return _Side(layouts, {name: name_of(x.dtype) for name, x in state.items()})


def _layout(name: str, dtensor: DTensor) -> Layout:
    if not isinstance(dtensor, DTensor):
        raise ShardError(
            f"a state dict has DTensors, which know where they are; got {type(dtensor).__name__} "
            f"for {name!r}; wrap it with DTensor.from_local, or leave it out"
        )
    spec = dtensor._spec
    return from_placements(spec.placements, spec.mesh, spec.shape, spec.shard_order)


def _locals(
    planned: TransferPlan, side: Literal["src", "dst"], state: StateDict | None
) -> dict[str, torch.Tensor]:
    """This rank's shards of a state dict, once it is checked that its layouts are as planned."""
    layouts: dict[str, Layout] = {t.name: getattr(t, side) for t in planned.tensors}
    rank = dist.get_rank()
    here = [name for name, layout in layouts.items() if rank in layout.mesh.device_ids]
    if state is None:
        if here:
            raise ShardError(
                "a rank that passes None for a state dict holds none of its shards; "
                f"got {side}=None on rank {rank}, which is in the mesh of {here[:4]}"
            )
        return {}
    if state.keys() != layouts.keys():
        raise PlanError(
            "a plan has the same tensors as the state dict; "
            f"got {side} with {sorted(state)[:4]} for a plan of {sorted(layouts)[:4]}"
        )
    for tensor in planned.tensors:
        dtensor = state[tensor.name]
        layout = _layout(tensor.name, dtensor)
        if layout != layouts[tensor.name]:
            raise PlanError(
                f"tensors have the planned layouts; got {layout} as {side} for {tensor.name!r}, "
                f"planned as {layouts[tensor.name]}; call plan_state_dict again"
            )
        if name_of(dtensor.dtype) != tensor.dtype:
            raise ShardError(
                f"shards have the dtype that is planned; got {dtensor.dtype} instead of "
                f"{tensor.dtype} as {side} for {tensor.name!r}; convert it, or call "
                "plan_state_dict again"
            )
    return {name: _local(state[name]) for name in here}


def _local(dtensor: DTensor) -> torch.Tensor:
    local = dtensor.to_local().detach()
    if isinstance(local, AsyncCollectiveTensor):
        local = local.wait()
    return local


def _writable(local: torch.Tensor, anywhere: bool) -> torch.Tensor:
    """A tensor to receive into: `local` itself if its bytes can be written, or else a new one.

    Unless `anywhere`, the bytes have to be in host memory.
    """
    reachable = anywhere or local.device.type == "cpu"
    if reachable and not local.is_conj() and not local.is_neg():
        return local
    return torch.empty(local.shape, dtype=local.dtype, device=local.device if anywhere else "cpu")


def _arrays(
    planned: TransferPlan, shards: Mapping[str, torch.Tensor]
) -> dict[str, dict[int, npt.NDArray[Any]]]:
    """The shards of this rank in the form that `execute` takes: arrays of the same memory."""
    rank = dist.get_rank()
    return {
        t.name: {rank: as_array(shards[t.name])} if t.name in shards else {}
        for t in planned.tensors
    }
