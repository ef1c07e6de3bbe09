"""`redistribute`, `transfer_state_dict`: DTensors to other meshes, which torch does not do itself.

Devices of a plan are global ranks. Shards are read and written where their DTensors keep them. By a
`Transport`, which needs them in host memory, those on other devices than CPUs are copied there; by
a process group they stay where they are.
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

__all__ = ["TorchTransport", "plan_state_dict", "redistribute", "transfer_state_dict"]

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
    """Move a DTensor to another mesh; `DTensor.redistribute` is for placements on its own.

    All ranks of `transport` call it alike, whether they are in a mesh or not: torch gives those
    outside an empty shard. Not differentiable.

    Args:
        dtensor: Of any placements that shardspec can say: uneven, strided, partial ones too.
        mesh: Where it shall be: other ranks, the same, or some of them.
        placements: How, one for each dim of `mesh`; none is partial.
        transport: Connects all ranks of both meshes: a Transport, for `execute`, or a process group
            such as NCCL's, for `execute_batched`.
        window: As there.
        deadline_s: As in `execute`; None for a process group, which has a timeout of its own.
        hosts: As in `plan`; devices are global ranks.
        links: As in `plan`.

    Returns:
        A new DTensor, contiguous on each rank.

    Raises:
        shardspec.NotationError: placements that no layout says.
        PlanError: what `plan` or `execute_batched` raises; or a deadline is missing, or given where
            there is none to give.
        ShardError: a shard has another shape than its DTensor says.
        TransferError: what `execute` or `execute_batched` raises.
    """
    shape = dtensor.shape
    layout = from_placements(placements, mesh, shape)
    rank = dist.get_rank()
    # Torch counts negative dims of placements from the last dim of the shard, also of an empty one.
    here = layout.local_shape(rank) if rank in layout.mesh.device_ids else (0,) * (len(shape) or 1)
    local = torch.empty(here, dtype=dtensor.dtype, device=mesh.device_type)
    stride = torch.empty(shape, device="meta").stride()
    moved = DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)
    src, dst = {"tensor": dtensor}, {"tensor": moved}
    made = plan_state_dict(src, dst, hosts, links)
    transfer_state_dict(src, dst, transport, window=window, deadline_s=deadline_s, planned=made)
    return moved


def transfer_state_dict(
    src: StateDict | None,
    dst: StateDict | None,
    transport: Transport | dist.ProcessGroup,
    *,
    window: int,
    deadline_s: float | None = None,
    planned: TransferPlan | None = None,
) -> None:
    """Copy the DTensors of a state dict into those of another, whatever their meshes.

    All ranks of `transport` call it alike. Those that have only one of the two pass None for the
    other, and a plan, for which `plan_state_dict` asks the others.

    Args:
        src: Where the tensors are; not changed. None: all of them are on other ranks. Meshes are
            the same on all ranks; those of slices such as `mesh["tp"]` are not, so take whole ones.
        dst: Where they go, with the same names, shapes and dtypes. None: all are on other ranks.
        transport: Connects all ranks of all meshes: a Transport, for `execute`, or a process group
            such as NCCL's, for `execute_batched`.
        window: As there.
        deadline_s: As in `execute`; None for a process group, which has a timeout of its own.
        planned: What `plan_state_dict` made, for any number of transfers. None: it is called.

    Raises:
        shardspec.NotationError: placements that no layout says.
        PlanError: what `plan_state_dict` or `execute_batched` raises; the plan is of other tensors
            than these, or a deadline is missing, or given where there is none to give.
        ShardError: what is no DTensor, of another dtype than planned, or a shard that shares memory
            with a source, or has another shape than its DTensor says.
        TransferError: what `execute` or `execute_batched` raises. Destinations in its `invalid` may
            be half written, unless a Transport moved what is not on CPUs: that is as it was.

        Whatever one rank raises, all others raise, and a Transport is closed, as in `execute`.
    """
    by_group = isinstance(transport, dist.ProcessGroup)
    if by_group == (deadline_s is not None):
        raise PlanError(
            "a deadline is for a Transport, and the timeout of a process group is its own; "
            f"got deadline_s={deadline_s} for a {type(transport).__name__}"
        )
    try:
        made = plan_state_dict(src, dst) if planned is None else planned
        sources, destinations = _locals(made, "src", src), _locals(made, "dst", dst)
        sources = {name: local.resolve_conj().resolve_neg() for name, local in sources.items()}
        written = {name: _writable(local, by_group) for name, local in destinations.items()}
        for name, local in (*sources.items(), *written.items()):
            check_plain(name, local)
        on_host = {} if by_group else {name: local.cpu() for name, local in sources.items()}
    except Exception as error:  # the others may have begun
        if isinstance(transport, dist.ProcessGroup):
            refuse_batched(transport, error)
        elif deadline_s is not None:
            refuse(transport, error, deadline_s)
        raise
    if isinstance(transport, dist.ProcessGroup):
        execute_batched(made, sources, written, transport, window=window)
    elif deadline_s is not None:
        execute(
            made,
            _arrays(made, on_host),
            transport,
            window=window,
            deadline_s=deadline_s,
            out=_arrays(made, written),
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
    """The plan of `transfer_state_dict`; only meshes, placements, shapes and dtypes matter.

    Without a group it communicates with nobody. With one, all its ranks call it alike, and learn
    from each other what they do not know: how the tensors lie that another program has.

    Args:
        src: Where the tensors are. None: other ranks of `group` say so.
        dst: Where they go, with the same names, shapes and dtypes. None: others say so.
        hosts: As in `plan`; devices are global ranks.
        links: As in `plan`.
        group: Where to ask, such as `dist.group.WORLD`; not that of a transport.
        options: Others that `plan` has.

    Raises:
        shardspec.NotationError: placements that no layout says.
        PlanError: names, shapes or dtypes differ, nobody knows one side, or what `plan` raises.
        ShardError: what is no DTensor.
        RankError: another rank of the group raised an error of its own tensors.
        TransportError: the group failed, or its timeout passed.
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
        # The first that knows speaks for all; of who has other tensors, `execute` finds out.
        source, destination, reason = (
            next(filter(None, said), None) for said in zip(*known, strict=True)
        )
        if failed is None and reason is not None:
            raise error_of(reason)
    if failed is not None:
        raise failed
    if source is None or destination is None:
        raise PlanError(
            f"a plan is of both sides; got None as {'src' if source is None else 'dst'}; "
            "pass a group with a rank that has it"
        )
    for name, dtype in source.dtypes.items():
        if destination.dtypes.get(name, dtype) != dtype:
            raise PlanError(
                f"a transfer does not convert elements; got {dtype} at the source and "
                f"{destination.dtypes[name]} at the destination for {name!r}; convert it before"
            )
    return plan(source.layouts, destination.layouts, source.dtypes, hosts, links, **options)


class _Side(NamedTuple):
    """What a plan needs to know of a state dict."""

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
            f"for {name!r}; wrap it by DTensor.from_local, or leave it out"
        )
    spec = dtensor._spec
    return from_placements(spec.placements, spec.mesh, spec.shape, spec.shard_order)


def _locals(
    planned: TransferPlan, side: Literal["src", "dst"], state: StateDict | None
) -> dict[str, torch.Tensor]:
    """What this rank holds of a state dict, which lies as planned: else bytes would go astray."""
    layouts: dict[str, Layout] = {t.name: getattr(t, side) for t in planned.tensors}
    rank = dist.get_rank()
    here = [name for name, layout in layouts.items() if rank in layout.mesh.device_ids]
    if state is None:
        if here:
            raise ShardError(
                "None stands for a state dict of which a rank holds nothing; "
                f"got {side}=None on rank {rank}, which is in the mesh of {here[:4]}"
            )
        return {}
    if state.keys() != layouts.keys():
        raise PlanError(
            "a plan is of the tensors of the state dict; "
            f"got {sorted(state)[:4]} as {side} for a plan of {sorted(layouts)[:4]}"
        )
    for tensor in planned.tensors:
        dtensor = state[tensor.name]
        layout = _layout(tensor.name, dtensor)
        if layout != layouts[tensor.name]:
            raise PlanError(
                f"tensors lie as planned; got {layout} as {side} for {tensor.name!r}, planned as "
                f"{layouts[tensor.name]}; plan_state_dict again"
            )
        if name_of(dtensor.dtype) != tensor.dtype:
            raise ShardError(
                f"shards have the dtype that is planned; got {dtensor.dtype} as {side} for "
                f"{tensor.dtype} of {tensor.name!r}; convert it, or plan_state_dict again"
            )
    return {name: _local(state[name]) for name in here}


def _local(dtensor: DTensor) -> torch.Tensor:
    local = dtensor.to_local().detach()
    if isinstance(local, AsyncCollectiveTensor):
        local = local.wait()
    return local


def _writable(local: torch.Tensor, anywhere: bool) -> torch.Tensor:
    """The tensor itself if its bytes can be written, in host memory or anywhere, or else room."""
    reachable = anywhere or local.device.type == "cpu"
    if reachable and not local.is_conj() and not local.is_neg():
        return local
    return torch.empty(local.shape, dtype=local.dtype, device=local.device if anywhere else "cpu")


def _arrays(
    planned: TransferPlan, shards: Mapping[str, torch.Tensor]
) -> dict[str, dict[int, npt.NDArray[Any]]]:
    """Shards of this rank as views of the same memory, as `execute` takes them."""
    rank = dist.get_rank()
    return {
        t.name: {rank: as_array(shards[t.name])} if t.name in shards else {}
        for t in planned.tensors
    }
