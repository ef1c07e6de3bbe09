"""`plan`: from two layouts, or two sets of them, to a plan.

A plan is a pure function of its arguments, so all ranks make the same one without talking. It
follows Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023:

    unit tasks         section 2.2         → drafts.py: who holds the same and needs the same
    strategies         section 3.1         → drafts.py: which receivers share a task
    senders and order  section 3.2         → search.py
    paths              section 3.1         → paths.py
"""

import math
from collections.abc import Mapping, Sequence
from typing import get_args

from shardspec import Layout

from crossmesh.base.geometry import reduction
from crossmesh.base.links import Links
from crossmesh.base.task import TaskStrategy
from crossmesh.base.tensor import DType, Tensor, can_add, dtype_name
from crossmesh.base.whole import whole_number
from crossmesh.errors import PartialLayoutError, PlanError
from crossmesh.search.routes import tasks_of
from crossmesh.search.unit_tasks import Draft, check_fineness, drafts_of
from crossmesh.transfer.plan import TransferPlan
from crossmesh.transfer.solver import STEPS, Flow, Order, search

FUSE_BYTES = 25 * 2**20
"""Up to how many bytes pieces are fused: a bucket of torch's DistributedDataParallel, whose
`bucket_cap_mb` is 25 (Li et al., "PyTorch Distributed", VLDB 2020, on gradient bucketing)."""

CHUNKS = 100
"""`K` of section 3.1: "relatively large compared to A (e.g., K ≈ 100 in our experiments)"."""

CHUNK_BYTES = 12288
"""Bytes of a chunk at least: shorter messages are not cut by MPICH's broadcast either (its variable
MPIR_CVAR_BCAST_SHORT_MSG_SIZE; Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005)."""


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
    """Plan how tensors move from their layouts to others.

    Each element is sent once to all devices that need it and lack it, from devices that hold it;
    partial results are combined on the way. A receiver whose host holds the element gets it there.
    Layouts may be uneven, strided and padded, and meshes may overlap.

    Args:
        src: Where the tensor is, or where each of several is, by name; replicas are taken to be
            equal.
        dst: Where it shall be; the same shape. With names, the same ones.
        dtype: Of the elements: numpy's, or a name such as "bfloat16"; or one for each name.
        hosts: Host of each device of all meshes; other devices are ignored. None: each device is a
            host of its own.
        links: How fast hosts and devices talk. None: all hosts are equally fast.
        strategy: How bytes reach several receivers.
        order: How senders and the order of tasks are searched.
        split: Whether several hosts that hold the same may send a part of it each.
        chunks: Into how many chunks a task's bytes are cut at most, to be passed on one by one.
        chunk_bytes: A chunk has at least as many bytes, unless it is all; one that no host passes
            on, 16 times as many.
        fuse_bytes: Pieces that have holders and receivers in common are fused up to this size; a
            larger piece is a task of its own.
        seed: Of what the search draws.
        steps: Its budget, the same on every machine.

    Returns:
        The plan; equal arguments give equal plans in every process.

    Raises:
        PartialLayoutError: a destination is partial, or elements cannot be added.
        PlanError: names or shapes differ, a device has no host or a host no rate, an unknown dtype,
            strategy or order, a number that is not whole, `chunks` or `chunk_bytes` below 1 or too
            large, `fuse_bytes` below 0, a seed or steps outside 64 bits, 2**61 bytes or more, or
            more than 2**22 devices, pieces or receivers of tasks together.

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
            "there is at least one chunk and fewer than 2**63, of at least one byte and fewer than "
            "2**58, and a size to fuse up to is not negative; "
            f"got {chunks=}, {chunk_bytes=} and {fuse_bytes=}"
        )
    if not isinstance(links, Links | None):
        raise PlanError(f"links are a crossmesh.Links or None; got {type(links).__name__}")
    tensors = _tensors(src, dst, dtype)
    host_of = _host_of(tensors, hosts)
    if links is not None:
        links.rates(set(host_of.values()))  # also of hosts that nothing passes

    copies, drafts = drafts_of(tensors, host_of, strategy, fuse_bytes)
    sends = search(
        [_flow(draft, tensors, host_of) for draft in drafts],
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
            "source, destination and dtype are of the same tensors; "
            f"got {_names(sources)}, {_names(destinations)} and {_names(dtypes)}"
        )
    if not all(isinstance(name, str) for name in sources):
        raise PlanError(f"tensors have texts as names; got {[*sources][:4]}")
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
            "a tensor is from one shardspec.Layout to another, and several are from mappings of "
            f"names to layouts; got {type(side).__name__}"
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
            f"both layouts are of one tensor; got shapes {src.shape} and {dst.shape} for {name!r}"
        )
    check_fineness(src)
    check_fineness(dst)
    if reduction(dst):
        raise PartialLayoutError(
            "a transfer delivers whole results; got the partial destination spec "
            f"{dst.spec} for {name!r}; plan to the same spec without +P, and have one device of "
            "each group keep the result, the others zeros"
        )
    if reduction(src) and not can_add(tensor.dtype):
        raise PartialLayoutError(
            "partial results are of numbers, to combine them; "
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
        raise PlanError(f"every device of all meshes needs a host; hosts lacks {missing}")
    host_of = {device: whole_number("a host", hosts[device]) for device in devices}
    wide = [host for host in host_of.values() if not -(2**63) <= host < 2**63]
    if wide:
        raise PlanError(f"hosts are numbers of 64 bits; got host {wide[0]}")
    return host_of


def _flow(draft: Draft, tensors: Sequence[Tensor], host_of: Mapping[int, int]) -> Flow:
    """A draft as hosts see it."""
    item_bytes = {tensors[tensor].item_bytes for tensor, _ in draft.pieces}
    return Flow(
        draft.n_bytes,
        tuple(tuple(sorted({host_of[device] for device in term})) for term in draft.terms),
        tuple(host_of[device] for device in draft.receivers),
        # Pieces of several sizes have borders at other places too: `tasks_of` moves cuts to them.
        itemsize=item_bytes.pop() if len(item_bytes) == 1 else 1,
        chained=len(draft.reduction) < 2,
    )
