"""One process of a lab, which stands for one device; writes its measurements to a folder.

    python rank.py gloo FOLDER RANK SIZE ADDRESS:PORT
    mpiexec -n SIZE python -m mpi4py rank.py mpi FOLDER

Each round measures all runs once, so that a slow minute of the machine affects all of them. All
processes of a run start at the same tick of the clock, which emulated hosts share. A run ends when
the last process has all its bytes and knows that the others have theirs. Before the start, the
shards are made; after the end, the bytes that arrived are compared with those that were sent. Bytes
and packets are those that the kernel counts at the host's interface, from some ticks before to some
ticks after the run, without other traffic.
"""

from __future__ import annotations

import datetime
import functools
import importlib
import json
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

if not __package__:  # run by its path: make `import crossnet` find the folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from crossmesh import TransferPlan, Transport, execute
from ranking.rank import come_first
from shardspec import Layout

COUNTERS = Path("/sys/class/net/eth0/statistics")
TICK_S = 0.05
NAP_S = 2e-3
BARRIER_S = 120.0
"""The time limit of a barrier: far longer than any transfer."""

Array = NDArray[Any]
Ranks = tuple[int, ...]


class Processes(Protocol):
    """All processes of the lab."""

    rank: int

    def barrier(self) -> None:
        """Wait for all processes."""

    def transport(self, ranks: Ranks, rank_of: Mapping[int, int]) -> Transport:
        """A transport between some of the processes, including this one.

        Args:
            ranks: The processes: one of the sets that this object was made for.
            rank_of: The position of each device's process among them.
        """


class Gloo:
    """Processes that communicate by `torch.distributed` with the backend gloo."""

    def __init__(self, sets: Iterable[Ranks], rank: int, size: int, address: str) -> None:
        importlib.import_module("torch").set_num_threads(1)
        self._dist = importlib.import_module("torch.distributed")
        self.rank = rank
        self._dist.init_process_group(
            "gloo",
            init_method=f"tcp://{address}",
            rank=rank,
            world_size=size,
            timeout=datetime.timedelta(minutes=2),
        )
        # All processes have to make the groups in the same order.
        self._groups = {ranks: self._dist.new_group(ranks, backend="gloo") for ranks in sets}

    def barrier(self) -> None:
        self._dist.barrier()

    def transport(self, ranks: Ranks, rank_of: Mapping[int, int]) -> Transport:
        from crossmesh.engines.torch_transport import TorchTransport

        return TorchTransport(self._groups[ranks], rank_of)


class Mpi:
    """Processes that communicate by MPI."""

    def __init__(self, sets: Iterable[Ranks]) -> None:
        mpi = importlib.import_module("mpi4py.MPI")
        self._world = mpi.COMM_WORLD
        self.rank = self._world.Get_rank()
        group = self._world.Get_group()
        self._comms = {
            ranks: self._world.Create_group(group.Incl(ranks))
            for ranks in sets
            if self.rank in ranks
        }
        self._world.alltoall(range(self._world.Get_size()))  # connects all of them

    def barrier(self) -> None:
        request = self._world.Ibarrier()
        until = time.monotonic() + BARRIER_S
        while not request.Test():
            if time.monotonic() > until:
                raise RuntimeError(f"rank {self.rank} waited {BARRIER_S} s for the others")
            time.sleep(NAP_S)

    def transport(self, ranks: Ranks, rank_of: Mapping[int, int]) -> Transport:
        from crossmesh.mpi import MpiTransport

        return MpiTransport(self._comms[ranks], rank_of)


class Device:
    """The part of one process in one run."""

    def __init__(self, processes: Processes, run: Mapping[str, Any], transport: Transport) -> None:
        self.plan = TransferPlan.from_json(run["plan"])
        self.seen: dict[str, list[float]] = {"start": [], "end": [], "bytes": [], "packets": []}
        self._processes = processes
        self._transport = transport
        self._window = run["window"]
        self._deadline_s = run["deadline_s"]
        self._device = next(int(d) for d, r in run["rank_of"].items() if r == processes.rank)

    def run(self) -> None:
        """Execute the plan, and verify every byte."""
        (tensor,) = self.plan.tensors
        # All elements are distinct numbers that float32 represents exactly, so equal numbers are
        # equal bytes.
        whole = np.arange(1, 1 + np.prod(tensor.shape), dtype=tensor.dtype).reshape(tensor.shape)
        expected = self._shards(tensor.dst, whole)
        shards = {d: part.copy() for d, part in self._shards(tensor.src, whole).items()}
        out = {device: np.zeros_like(part) for device, part in expected.items()}

        self._processes.barrier()
        _next_tick()
        n_bytes, n_packets = _count("bytes"), _count("packets")
        start = _next_tick()
        execute(
            self.plan,
            shards,
            self._transport,
            window=self._window,
            deadline_s=self._deadline_s,
            out=out,
        )
        end = time.perf_counter()
        _next_tick()
        self._note(start, end, _count("bytes") - n_bytes, _count("packets") - n_packets)
        _next_tick()  # other processes may count one tick later
        self._processes.barrier()

        for device, part in expected.items():
            if self.plan.strategy != "signal" and not np.array_equal(out[device], part):
                raise RuntimeError(f"device {device} got other bytes than were sent: {self.plan}")

    def _shards(self, layout: Layout, whole: Array) -> dict[int, Array]:
        mine = {self._device}.intersection(layout.mesh.device_ids)
        return {device: whole[layout.slices(device)] for device in mine}

    def _note(self, *values: float) -> None:
        for series, value in zip(self.seen.values(), values, strict=True):
            series.append(value)


def _count(what: str) -> int:
    """The bytes or packets that the host has sent and received."""
    return sum(int((COUNTERS / f"{way}_{what}").read_text()) for way in ("tx", "rx"))


def _next_tick() -> float:
    """Sleep until the tick after the next one: others may leave a barrier after the next one."""
    now = time.perf_counter()
    tick = (now // TICK_S + 2) * TICK_S
    time.sleep(tick - now)
    return tick


def main(backend: str, folder: str, *rest: str) -> None:
    """Run the jobs in the folder's `job.json`."""
    runs = json.loads(Path(folder, "job.json").read_text())
    ranks_of_runs = [tuple(sorted(run["rank_of"].values())) for run in runs]
    sets = sorted(set(ranks_of_runs))
    processes: Processes
    if backend == "mpi":
        processes = Mpi(sets)
        come_first()  # not earlier, because MPICH polls without sleeping while it starts
    else:
        come_first()
        processes = Gloo(sets, int(rest[0]), int(rest[1]), rest[2])

    @functools.cache  # the same devices use one transport for all transfers, as in training
    def transport(ranks: Ranks, placed: tuple[tuple[str, int], ...]) -> Transport:
        return processes.transport(ranks, {int(d): ranks.index(rank) for d, rank in placed})

    devices = [
        Device(processes, run, transport(ranks, tuple(run["rank_of"].items())))
        if processes.rank in ranks
        else None
        for run, ranks in zip(runs, ranks_of_runs, strict=True)
    ]
    for number in range(max(run["rounds"] for run in runs)):
        for run, device in zip(runs, devices, strict=True):
            if number >= run["rounds"]:
                continue
            if device:
                device.run()
            else:
                processes.barrier()
                processes.barrier()
    seen = [device and device.seen for device in devices]
    Path(folder, f"{processes.rank}.json").write_text(json.dumps(seen))
    processes.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
