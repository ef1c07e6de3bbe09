"""Hypothesis strategies and checkers for tests of this package and of others (extra `testing`)."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from shardspec import ChunkingRule, Layout, Mesh, shard
from shardspec.testing import EVERY_RULE, layouts, meshes, specs

from crossmesh.base.links import Links
from crossmesh.base.task import UnitTask
from crossmesh.base.tensor import Tensor
from crossmesh.transfer.plan import TransferPlan

Array = npt.NDArray[np.generic]

DTYPES = ("float32", "int8", "bfloat16", "float64", "uint16")

SAME_SIZE = {
    1: (
        *("bool", "int8", "uint8", "int1", "int2", "int4", "uint1", "uint2", "uint4", "|S1", "|V1"),
        *("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "float8_e3m4", "float8_e4m3"),
        *("float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"),
        *("float8_e5m2fnuz", "float8_e8m0fnu"),
    ),
    2: ("float16", "bfloat16", "int16", "uint16", ">f2", ">i2", ">u2", "|S2", "|V2"),
    4: ("float32", "int32", "uint32", ">f4", ">i4", ">u4", "<U1", ">U1", "|S4", "|V4"),
    8: (
        *("float64", "int64", "uint64", "complex64", ">f8", ">i8", ">u8", ">c8", "|S8", "|V8"),
        *("<M8[s]", "<M8[ms]", "<m8[s]", ">M8[s]", "<M8"),
    ),
    16: ("complex128", ">c16", "|S16", "<U4", "|V16"),
}
"""Names of element types that numpy and ml_dtypes have, by the bytes of an element."""


@dataclass(frozen=True, slots=True)
class TransferCase:
    """Valid arguments of `plan`."""

    src: Layout
    dst: Layout
    dtype: str
    hosts: dict[int, int]
    links: Links


@dataclass(frozen=True, slots=True)
class Batch:
    """Valid arguments of `plan`, for several tensors."""

    src: dict[str, Layout]
    dst: dict[str, Layout]
    dtype: dict[str, str]
    hosts: dict[int, int]
    links: Links


@st.composite
def transfers(
    draw: st.DrawFn, *, max_rank: int = 3, partial: bool = True, strided: bool = True
) -> TransferCase:
    """Transfers of small tensors of any shape, between meshes that may share devices and hosts.

    Args:
        draw: Passed by Hypothesis.
        max_rank: The most dims.
        partial: Whether the source may hold partial results, of one kind or several.
        strided: Whether shards may be strided.
    """
    src, dst = draw(_pairs(max_rank, partial, strided))
    hosts, links = draw(_clusters([src, dst]))
    return TransferCase(src, dst, draw(st.sampled_from(DTYPES)), hosts, links)


@st.composite
def batches(
    draw: st.DrawFn, *, max_tensors: int = 4, partial: bool = True, strided: bool = True
) -> Batch:
    """Like `transfers`, but of several tensors, some of which have equal layouts."""
    pairs = draw(st.lists(_pairs(2, partial, strided), max_size=max_tensors))
    pairs += draw(st.lists(st.sampled_from(pairs), max_size=2)) if pairs else []
    names = draw(st.permutations([f"layer.{i}" for i in range(len(pairs))]))
    hosts, links = draw(_clusters(list(itertools.chain(*pairs))))
    return Batch(
        {name: src for name, (src, _) in zip(names, pairs, strict=True)},
        {name: dst for name, (_, dst) in zip(names, pairs, strict=True)},
        {name: draw(st.sampled_from(DTYPES)) for name in names},
        hosts,
        links,
    )


@st.composite
def _pairs(draw: st.DrawFn, max_rank: int, partial: bool, strided: bool) -> tuple[Layout, Layout]:
    src = draw(
        layouts(
            max_rank=max_rank,
            partial=partial,
            sub_axes=True,
            strided=strided,
            mixed_kinds=True,
            chunking=EVERY_RULE,
            mesh=_moved(draw(meshes(max_ndim=2, max_length=6, max_size=12)), 0),
        )
    )
    mesh = draw(meshes(max_ndim=2, max_length=6, max_size=12))
    mesh = _moved(mesh, draw(st.sampled_from([0, 3, 100])))
    spec = draw(specs(mesh, len(src.shape), partial=False, sub_axes=True, strided=strided))
    return src, Layout(src.shape, mesh, spec, draw(st.sampled_from(get_args(ChunkingRule))))


def _moved(mesh: Mesh, offset: int) -> Mesh:
    return Mesh(mesh.shape, mesh.axis_names, tuple(device + offset for device in mesh.device_ids))


@st.composite
def _clusters(draw: st.DrawFn, of: Sequence[Layout]) -> tuple[dict[int, int], Links]:
    devices = sorted({device for layout in of for device in layout.mesh.device_ids})
    host_ids = st.integers(0, draw(st.integers(0, 5)))
    hosts = {device: draw(host_ids) for device in devices}
    rate = st.sampled_from([1.0, 1.0, 3.0, 0.1, 12.5e9])
    rates = {host: draw(rate) for host in sorted(set(hosts.values()))}
    return hosts, Links(
        rates, device_bytes_per_s=1e12, latency_s=draw(st.sampled_from([0.0, 1e-5]))
    )


def shards_of(layout: Layout, whole: Array) -> dict[int, Array]:
    """Each device's shard of a whole tensor; a view if each shard is one block without padding."""
    if layout.is_contiguous and "padded" not in layout.rules:
        return {d: np.asarray(whole[layout.slices(d)]) for d in layout.mesh.device_ids}
    return shard(layout, whole)


def check_plan(plan: TransferPlan) -> None:
    """Assert from the layouts alone that a plan delivers each element exactly once.

    Every destination device gets each of its elements from its own source shard or from one task.
    Every task names all devices that hold each of its terms, each term is added once, and all bytes
    that are sent arrive. A copy does not cross to a host that already holds a replica. This checker
    shares no code with the planner.
    """
    host_of = dict(plan.hosts)
    held = [
        {device: _mask(t.src, device) for device in t.src.mesh.device_ids} for t in plan.tensors
    ]
    arrived = [
        {device: np.zeros(t.shape, int) for device in t.dst.mesh.device_ids} for t in plan.tensors
    ]
    for copy in plan.copies:
        for i, elements in _elements(plan, copy.pieces, None):
            assert _n_terms(plan.tensors[i]) == 1, f"{copy}: one of several terms is no result"
            assert held[i][copy.device].flat[elements].all(), f"{copy}: the device lacks elements"
            arrived[i][copy.device].reshape(-1)[elements] += 1
    for index, task in enumerate(plan.tasks):
        assert task.index == index, f"{task} is number {index}"
        assert task.part[0] < task.part[1], f"{task} moves nothing"
        for i, elements in _elements(plan, task.pieces, task.part):
            _check_terms(plan.tensors[i], task, held[i], elements)
            for device in task.receivers:
                assert device in arrived[i], f"{task}: device {device} needs no elements"
                arrived[i][device].reshape(-1)[elements] += 1
        _check_path(task, host_of)
    for tensor, of_tensor in zip(plan.tensors, arrived, strict=True):
        for device, times in of_tensor.items():
            needed = _mask(tensor.dst, device)
            assert (times == needed).all(), (
                f"device {device} gets elements of {tensor.name} {times[times != needed]} times"
            )


def _mask(layout: Layout, device: int) -> npt.NDArray[np.bool_]:
    """A mask of the elements of the whole tensor that a device holds."""
    mask = np.zeros(layout.shape, bool)
    mask[np.ix_(*layout.indices(device))] = True
    return mask


def _elements(
    plan: TransferPlan, pieces: Sequence[Any], part: tuple[int, int] | None
) -> list[tuple[int, npt.NDArray[np.intp]]]:
    """The elements in a byte range of packed pieces: tensor indices, each with flat positions."""
    by_tensor = []
    at = 0
    for i, box in pieces:
        tensor = plan.tensors[i]
        numbers = np.arange(np.prod(tensor.shape, dtype=int)).reshape(tensor.shape)
        elements = numbers[tuple(slice(*interval) for interval in box)].reshape(-1)
        starts = at + np.arange(len(elements)) * tensor.item_bytes
        at += len(elements) * tensor.item_bytes
        if part is not None:
            inside = (starts >= part[0]) & (starts + tensor.item_bytes <= part[1])
            outside = (starts + tensor.item_bytes <= part[0]) | (starts >= part[1])
            assert (inside | outside).all(), f"{part} cuts an element of {tensor.name} in two"
            elements = elements[inside]
        if len(elements):
            by_tensor.append((i, elements))
    assert part is None or 0 <= part[0] <= part[1] <= at, f"{part} is not within {at} bytes"
    return by_tensor


def _places(layout: Layout) -> list[list[int]]:
    """The devices that hold each term of a partial layout, ordered with the major axis first."""
    axes = [p.axis for p in layout.spec.partial]
    of_place: dict[tuple[int, ...], list[int]] = {
        place: [] for place in itertools.product(*(range(layout.mesh.length(a)) for a in axes))
    }
    for device in layout.mesh.device_ids:
        coordinates = layout.mesh.coordinates(device)
        of_place[tuple(layout.mesh.coordinate(coordinates, axis) for axis in axes)].append(device)
    return list(of_place.values())


def _n_terms(tensor: Tensor) -> int:
    return len(_places(tensor.src))


def _check_terms(
    tensor: Tensor,
    task: UnitTask,
    held: Mapping[int, npt.NDArray[np.bool_]],
    elements: npt.NDArray[np.intp],
) -> None:
    places = _places(tensor.src)
    assert len(task.terms) == len(places), f"{task}: {tensor.name} has {len(places)} terms"
    for term, devices in zip(task.terms, places, strict=True):
        for device in devices:
            has = held[device].flat[elements]
            complete = has.all() if device in term else not has.any()
            assert complete, f"{task}: {term} are not all that hold a term"
        assert set(term) <= set(devices), f"{task}: {term} hold another term, too"
    kinds = [p.kind for p in tensor.src.spec.partial if tensor.src.mesh.length(p.axis) > 1]
    assert [kind for kind, _ in itertools.groupby(kinds)] == [kind for kind, _ in task.reduction]
    assert np.prod([count for _, count in task.reduction], dtype=int) == len(places)


def _check_path(task: UnitTask, host_of: Mapping[int, int]) -> None:
    adders, sender = task.path[: len(task.terms)], task.path[len(task.terms) - 1]
    followers = task.path[len(task.terms) :]
    for term in task.terms:
        assert len(set(term).intersection(adders)) == 1, f"{task}: one adder for {term}"
    assert len(set(adders)) == len(task.terms), f"{task}: one adder for each term"
    assert sorted(followers) == sorted(set(task.receivers) - {sender}), f"{task}: all receivers"
    for side in (adders, (sender, *followers)):
        hosts = [host for host, _ in itertools.groupby(host_of[device] for device in side)]
        assert len(hosts) == len(set(hosts)), f"{task}: {hosts} passes a host twice"
    if len(task.terms) == 1:
        assert not set(task.terms[0]).intersection(task.receivers), f"{task}: a receiver holds it"
        with_replica = {host_of[device] for device in task.terms[0]}
        for device in task.receivers:
            assert host_of[device] == host_of[sender] or host_of[device] not in with_replica, (
                f"{task}: host {host_of[device]} holds a replica for device {device}"
            )
    if task.strategy == "send_recv":
        assert len(task.receivers) == 1, f"{task}: one receiver each"
    if task.strategy == "local_allgather":
        assert len({host_of[device] for device in task.receivers}) == 1, f"{task}: one host each"
    assert task.n_chunks >= 1, f"{task}: at least one chunk"
    incoming = dict.fromkeys(followers, 0)
    for a, b, n_bytes in list(task.hops)[len(task.terms) - 1 :]:
        assert a in (sender, *followers), f"{task}: {a} has nothing to send"
        incoming[b] += n_bytes
    arriving = 1 if task.strategy == "signal" else task.part[1] - task.part[0]
    assert set(incoming.values()) <= {arriving}, f"{task}: {incoming} bytes arrive"


def check_delivery(plan: TransferPlan, whole: Array, received: Mapping[int, Array]) -> None:
    """Assert that each destination shard holds the right elements of the whole tensor."""
    (tensor,) = plan.tensors
    assert tuple(received) == tuple(tensor.dst.mesh.device_ids)
    expected = shard(tensor.dst, whole)
    for device, array in received.items():
        np.testing.assert_array_equal(
            array, expected[device], err_msg=f"device {device}", strict=True
        )
        assert array.flags.c_contiguous, f"device {device}: not contiguous"
        assert array.flags.writeable, f"device {device}: not writeable"
        assert not np.shares_memory(array, whole), f"device {device}: not a copy"
