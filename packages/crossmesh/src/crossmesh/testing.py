"""Hypothesis strategies and checkers, for our tests and those of siblings (extra `testing`)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from shardspec import Layout, Mesh
from shardspec.testing import meshes, specs

from crossmesh.plan import TransferPlan

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Transfer:
    """Valid arguments of `plan_transfer`."""

    src: Layout
    dst: Layout
    itemsize: int
    hosts: dict[int, int]
    rates: dict[int, float]


@st.composite
def transfers(draw: st.DrawFn, *, max_rank: int = 3, max_size: int = 7) -> Transfer:
    """Transfers of small tensors, of any sizes, between meshes that may share devices and hosts."""
    shape = tuple(draw(st.lists(st.integers(0, max_size), max_size=max_rank)))
    layouts = []
    for offset in (0, draw(st.sampled_from([0, 3, 100]))):
        mesh = draw(meshes(max_ndim=2))
        mesh = Mesh(mesh.shape, mesh.axis_names, tuple(id + offset for id in mesh.device_ids))
        layouts.append(Layout(shape, mesh, draw(specs(mesh, len(shape), partial=False))))
    devices = sorted({device for layout in layouts for device in layout.mesh.device_ids})
    host_ids = st.integers(0, draw(st.integers(0, 5)))
    hosts = {device: draw(host_ids) for device in devices}
    rate = st.sampled_from([1.0, 1.0, 3.0, 0.1, 12.5e9])
    rates = {host: draw(rate) for host in sorted(set(hosts.values()))}
    return Transfer(layouts[0], layouts[1], draw(st.sampled_from([1, 2, 4, 8, 16])), hosts, rates)


def shards_of(layout: Layout, whole: Array) -> dict[int, Array]:
    """Each device's shard of a whole tensor, as a view of it unless it is a scalar."""
    return {device: np.asarray(whole[layout.slices(device)]) for device in layout.mesh.device_ids}


def check_plan(plan: TransferPlan) -> None:
    """Assert from the layouts alone that a plan delivers each element exactly once.

    Also that its tasks are numbered in order, name all holders and a true sender, cross no host
    boundary that a replica makes unnecessary, and, if sent one by one, have one receiver each.
    """
    host_of = dict(plan.hosts)
    arrived = {
        device: np.zeros(plan.dst.local_shape(device), int) for device in plan.dst.mesh.device_ids
    }
    for index, task in enumerate(plan.tasks):
        assert task.index == index, f"{task} is number {index}"
        holders = {d for d in plan.src.mesh.device_ids if _inside(task.slices, plan.src, d)}
        assert set(task.senders) == holders, f"{task}: {holders} hold the slice"
        assert task.sender in holders, f"{task}: the sender does not hold the slice"
        assert plan.strategy == "broadcast" or len(task.receivers) == 1, (
            f"{task}: one receiver each"
        )
        holder_hosts = {host_of[device] for device in holders}
        for device in task.receivers:
            assert host_of[device] == host_of[task.sender] or host_of[device] not in holder_hosts, (
                f"{task}: host {host_of[device]} holds a replica for device {device}"
            )
            assert _inside(task.slices, plan.dst, device), f"{task}: not all for device {device}"
            parts = zip(task.slices, plan.dst.slices(device), strict=True)
            box = tuple(slice(a - part.start, b - part.start) for (a, b), part in parts)
            arrived[device][box] += 1
    for device, times in arrived.items():
        assert (times == 1).all(), f"device {device} gets its elements {times} times"


def check_delivery(plan: TransferPlan, whole: Array, received: Mapping[int, Array]) -> None:
    """Assert that each destination shard is the slice of the whole tensor that it stands for."""
    assert tuple(received) == tuple(plan.dst.mesh.device_ids)
    for device, array in received.items():
        expected = np.asarray(whole[plan.dst.slices(device)])
        np.testing.assert_array_equal(array, expected, err_msg=f"device {device}", strict=True)
        assert array.flags.c_contiguous, f"device {device}: not contiguous"
        assert array.flags.writeable, f"device {device}: not writeable"
        assert not np.shares_memory(array, whole), f"device {device}: not a copy"


def _inside(slices: tuple[tuple[int, int], ...], layout: Layout, device: int) -> bool:
    parts = zip(slices, layout.slices(device), strict=True)
    return all(part.start <= start < stop <= part.stop for (start, stop), part in parts)
