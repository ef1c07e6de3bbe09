"""`plan`: from two layouts, or two sets of layouts, to a plan.

A plan is a pure function of its arguments, so all ranks make the same plan without communicating.
It follows Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023:

    unit tasks         section 2.2   → unit_tasks.py: bytes with the same holders and receivers
    strategies         section 3.1   → unit_tasks.py: which receivers share a task
    senders and order  section 3.2   → crossmesh.transfer.solver
    paths              section 3.1   → routes.py
"""

import math
from collections.abc import Mapping, Sequence
from typing import get_args

from shardspec import Layout

from crossmesh.base import no_gc
from crossmesh.base.geometry import reduction
from crossmesh.base.links import Links
from crossmesh.base.task import TaskStrategy
from crossmesh.base.tensor import DType, Tensor, can_add, dtype_name
from crossmesh.base.whole import whole_number
from crossmesh.errors import PartialLayoutError, PlanError
from crossmesh.search.routes import tasks_of
from crossmesh.search.unit_tasks import Devices, Draft, check_fineness, drafts_of
from crossmesh.transfer.plan import TransferPlan
from crossmesh.transfer.solver import STEPS, Flow, Order, search

FUSE_BYTES = 25 * 2**20
"""Pieces are fused up to this many bytes: the size of a bucket of torch's DistributedDataParallel,
whose `bucket_cap_mb` is 25 (Li et al., "PyTorch Distributed", VLDB 2020, on gradient bucketing)."""

CHUNKS = 100
"""`K` of section 3.1: "relatively large compared to A (e.g., K ≈ 100 in our experiments)"."""

CHUNK_BYTES = 12288
"""The fewest bytes of a chunk: MPICH's broadcast does not cut shorter messages either (its variable
MPIR_CVAR_BCAST_SHORT_MSG_SIZE; Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005)."""


@no_gc.paused()
def plan(
    src: Layout | Mapping[str, Layout],
    dst: Layout | Mapping[str, Layout],
    dtype: DType | Mapping[str, DType],
    hosts: Mapping[int, int] | None = None,
    links: Links | None = None,
    *,
    strategy: TaskStrategy = "broadcast",
    order: Order = "ensemble",
    split: bool = True,
    chunks: int = CHUNKS,
    chunk_bytes: int = CHUNK_BYTES,
    fuse_bytes: int = FUSE_BYTES,
    seed: int = 0,
    steps: int = STEPS,
) -> TransferPlan:
    """Plan how tensors move from their layouts to new ones.

    Each element is sent once to all devices that need it and lack it, from devices that hold it;
    partial results are combined on the way. A receiver whose host holds the element gets it there.
    Layouts may be uneven, strided and padded, and meshes may overlap.

    Args:
        src: The layout of the tensor before the transfer, or of each of several tensors, by name.
            Replicas are assumed to be equal.
        dst: The layout after the transfer, of the same shape; by name, with the same names.
        dtype: The element type: one of numpy, or a name such as "bfloat16"; or one for each name.
        hosts: The host of each device of all meshes; other devices are ignored. None: each device
            is a host by itself.
        links: How fast hosts and devices communicate. None: all hosts are equally fast.
        strategy: How bytes reach several receivers.
        order: How senders and the order of tasks are searched.
        split: Whether hosts that hold the same bytes may each send a part of them.
        chunks: The most chunks into which the bytes of a task are cut, to be passed on one by one.
        chunk_bytes: The fewest bytes of a chunk, unless it is the whole task. Chunks that no host
            forwards have at least 16 times as many.
        fuse_bytes: Pieces with the same holders and receivers are fused up to this size; a larger
            piece is a task by itself.
        seed: Seed of the randomness in the search.
        steps: The budget of the search, which means the same on every machine.

    Returns:
        The plan; equal arguments give equal plans in every process.

    Raises:
        PartialLayoutError: A destination is partial, or the elements of a partial source cannot be
            added.
        PlanError: Names or shapes differ; a device has no host, or a host no rate; the dtype, the
            strategy or the order is unknown; a number is not whole; `chunks` or `chunk_bytes` is
            below 1 or too large, or `fuse_bytes` below 0; the seed or the steps do not fit 64 bits;
            there are 2**61 bytes or more, or more than 2**22 devices, pieces or receivers of all
            tasks together.

    Examples:
        >>> from shardspec import Layout, Mesh, Spec
        >>> rows = Layout((4, 4), Mesh((2,), ("x",), (0, 1)), Spec.parse("S0R"))
        >>> columns = Layout((4, 4), Mesh((2,), ("x",), (2, 3)), Spec.parse("RS0"))
        >>> print(plan(rows, columns, "float32"))
        0 tensor: float32[4, 4] S0R on (2,) -> RS0 on (2,)
          0: 0[0:2, 0:2] bytes 0:16 0 -> 2
          1: 0[2:4, 2:4] bytes 0:16 1 -> 3
          2: 0[0:2, 2:4] bytes 0:16 0 -> 3
          3: 0[2:4, 0:2] bytes 0:16 1 -> 2
    """
    if strategy not in get_args(TaskStrategy):
        known = " or ".join(map(repr, get_args(TaskStrategy)))
        raise PlanError(f"a strategy is {known}; got {strategy!r}")
    chunks, chunk_bytes, fuse_bytes, seed, steps = (
        whole_number(name, value)
        for name, value in (
            ("chunks", chunks),
            ("chunk_bytes", chunk_bytes),
            ("fuse_bytes", fuse_bytes),
            ("seed", seed),
            ("steps", steps),
        )
    )
    if not (1 <= chunks < 2**63 and 1 <= chunk_bytes < 2**58 and fuse_bytes >= 0):
        raise PlanError(
            "chunks are from 1, below 2**63, chunk_bytes from 1, below 2**58, and fuse_bytes is "
            f"not negative; got {chunks=}, {chunk_bytes=} and {fuse_bytes=}"
        )
    if not isinstance(links, Links | None):
        raise PlanError(f"links are a crossmesh.Links or None; got {type(links).__name__}")
    tensors = _tensors(src, dst, dtype)
    host_of = _host_of(tensors, hosts)
    if links is not None:
        links.rates(set(host_of.values()))  # every host needs a rate, also one without traffic

    copies, drafts = drafts_of(tensors, host_of, strategy, fuse_bytes)
    sends = search(
        _flows(drafts, host_of),
        links,
        strategy=strategy,
        order=order,
        split=bool(split),
        n_chunks=chunks,
        chunk_bytes=chunk_bytes,
        seed=seed,
        steps=steps,
    )
    return TransferPlan(
        tensors,
        tuple(sorted(host_of.items())),
        links,
        strategy,
        order,
        copies,
        tasks_of(drafts, sends, tensors, host_of, strategy, chunks, chunk_bytes),
    )


def _tensors(
    src: Layout | Mapping[str, Layout],
    dst: Layout | Mapping[str, Layout],
    dtype: DType | Mapping[str, DType],
) -> tuple[Tensor, ...]:
    sources, destinations = _by_name(src), _by_name(dst)
    dtypes = dict(dtype) if isinstance(dtype, Mapping) else dict.fromkeys(sources, dtype)
    if not sources.keys() == destinations.keys() == dtypes.keys():
        raise PlanError(
            "source, destination and dtype have the same tensor names; "
            f"got {_names(sources)}, {_names(destinations)} and {_names(dtypes)}"
        )
    if not all(isinstance(name, str) for name in sources):
        raise PlanError(f"names of tensors are texts; got {[*sources][:4]}")
    tensors = []
    for name in sorted(sources):
        tensor = Tensor(name, dtype_name(dtypes[name]), sources[name], destinations[name])
        _check(tensor)
        tensors.append(tensor)
    total = sum(math.prod(size for size in t.shape if size) * t.item_bytes for t in tensors)
    if total >= 2**63:
        raise PlanError(f"a plan moves fewer than 2**63 bytes; got {total}")
    return tuple(tensors)


def _by_name(side: Layout | Mapping[str, Layout]) -> dict[str, Layout]:
    if isinstance(side, Layout):
        return {"tensor": side}
    if not isinstance(side, Mapping):
        raise PlanError(
            "src and dst are each a shardspec.Layout, or a mapping of names to layouts for several "
            f"tensors; got {type(side).__name__}"
        )
    return dict(side)


def _check(tensor: Tensor) -> None:
    name, src, dst = tensor.name, tensor.src, tensor.dst
    if not isinstance(src, Layout) or not isinstance(dst, Layout):
        raise PlanError(
            "a tensor has a source and a destination shardspec.Layout; "
            f"got {type(src).__name__} and {type(dst).__name__} for {name!r}"
        )
    if src.shape != dst.shape:
        raise PlanError(
            "both layouts of a tensor have the same shape; "
            f"got {src.shape} and {dst.shape} for {name!r}"
        )
    check_fineness(src)
    check_fineness(dst)
    if reduction(dst):
        raise PartialLayoutError(
            "a transfer delivers whole results; got the partial destination spec "
            f"{dst.spec} for {name!r}; plan for the same spec without +P; then let one device of "
            "each group keep the result and fill the others with zeros"
        )
    if reduction(src) and not can_add(tensor.dtype):
        raise PartialLayoutError(
            "a partial source has numbers as elements, so that they can be combined; "
            f"got dtype {tensor.dtype} and the source spec {src.spec} for {name!r}"
        )


def _names(mapping: Mapping[str, object]) -> str:
    names = sorted(mapping, key=str)
    return f"{names[:4]}" if len(names) <= 4 else f"{names[:4]} and {len(names) - 4} more"


def _host_of(tensors: Sequence[Tensor], hosts: Mapping[int, int] | None) -> dict[int, int]:
    meshes = {layout.mesh for tensor in tensors for layout in (tensor.src, tensor.dst)}
    devices = sorted({device for mesh in meshes for device in mesh.device_ids})
    if hosts is None:
        return {device: device for device in devices}
    if not isinstance(hosts, Mapping):
        raise PlanError(f"hosts are a mapping from devices to hosts; got {type(hosts).__name__}")
    missing = [device for device in devices if device not in hosts]
    if missing:
        raise PlanError(f"every device of all meshes needs a host; hosts lacks devices {missing}")
    host_of = {device: whole_number("a host", hosts[device]) for device in devices}
    too_large = [host for host in host_of.values() if not -(2**63) <= host < 2**63]
    if too_large:
        raise PlanError(f"hosts are whole numbers of 64 bits; got host {too_large[0]}")
    return host_of


def _flows(drafts: Sequence[Draft], host_of: Mapping[int, int]) -> list[Flow]:
    """The flow between hosts that each draft is.

    Pieces with different element sizes have no common item size: then the search may cut anywhere,
    and `tasks_of` moves each cut to a border between elements.
    """
    receiving: dict[Devices, tuple[int, ...]] = {}
    holding: dict[tuple[Devices, ...], tuple[tuple[int, ...], ...]] = {}
    flows = []
    for draft in drafts:
        if draft.receivers not in receiving:
            receiving[draft.receivers] = tuple(host_of[device] for device in draft.receivers)
        if draft.terms not in holding:
            hosts_of_terms = ({host_of[device] for device in term} for term in draft.terms)
            holding[draft.terms] = tuple(tuple(sorted(hosts)) for hosts in hosts_of_terms)
        flows.append(
            Flow(
                draft.n_bytes,
                holding[draft.terms],
                receiving[draft.receivers],
                draft.itemsize,
                len(draft.reduction) < 2,
            )
        )
    return flows
