"""One process of a lab: runs the tasks of a folder, times them, and writes its measurements there.

    python rank.py gloo FOLDER RANK SIZE ADDRESS:PORT      mpiexec -n SIZE python rank.py mpi FOLDER

All tasks run once to warm up. Then each round runs all tasks, so that a slow minute of the machine
affects all of them. All processes start a program at the same tick of the clock, which emulated
hosts share, so that none computes while others still wait for a core. The bytes are those that the
host has sent, as the kernel counts them, until all processes have passed a barrier.
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

if not __package__:  # run by its path: make `import ranking` find the folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from ranking.program import (
    ITEMSIZE_BYTES,
    Collective,
    Copy,
    Kind,
    Matmul,
    Operation,
    Task,
    load,
)

SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")
TICK_S = 0.01
NAP_S = 20e-6
Array = NDArray[np.float32]


class Group(Protocol):
    """A group of processes."""

    def call(self, kind: Kind, source: Array, target: Array) -> Callable[[], object]:
        """A function that runs a collective of the group from one flat array to another."""


class Processes(Protocol):
    """All processes of the lab."""

    rank: int

    def barrier(self) -> None:
        """Wait for all processes."""

    def group(self, groups: list[list[int]]) -> Group:
        """The group of this process, out of disjoint groups of ranks."""


class Gloo:
    """Processes that communicate by `torch.distributed` with the backend gloo."""

    def __init__(self, rank: int, size: int, address: str) -> None:
        self._torch = importlib.import_module("torch")
        self._torch.set_num_threads(1)
        self._dist = importlib.import_module("torch.distributed")
        self.rank = rank
        self._dist.init_process_group(
            "gloo",
            init_method=f"tcp://{address}",
            rank=rank,
            world_size=size,
            timeout=datetime.timedelta(minutes=2),
        )

    def barrier(self) -> None:
        self._dist.barrier()

    def group(self, groups: list[list[int]]) -> Group:
        # All processes have to make all groups, in the same order.
        all_groups = [self._dist.new_group(ranks) for ranks in groups]
        own = next(all_groups[i] for i, ranks in enumerate(groups) if self.rank in ranks)
        return _GlooGroup(self._torch, self._dist, own)


class _GlooGroup:
    def __init__(self, torch: Any, dist: Any, group: Any) -> None:
        self._torch, self._dist, self._group = torch, dist, group

    def call(self, kind: Kind, source: Array, target: Array) -> Callable[[], object]:
        a, b = self._torch.from_numpy(source), self._torch.from_numpy(target)
        dist, group = self._dist, self._group
        match kind:
            case "all_gather":
                return lambda: dist.all_gather_single(b, a, group=group)
            case "all_reduce":
                return lambda: dist.all_reduce(b, group=group)
            case "all_to_all":
                return lambda: dist.all_to_all_single(b, a, group=group)
            case "reduce_scatter":
                return lambda: dist.reduce_scatter_single(b, a, group=group)


class Mpi:
    """Processes that communicate by MPI.

    MPICH waits by polling. With more processes than cores, waiting processes would poll in turn
    while the one that has work waits for a core. So this uses nonblocking collectives, and sleeps
    between two polls.
    """

    def __init__(self) -> None:
        self._mpi = importlib.import_module("mpi4py.MPI")
        self.rank = self._mpi.COMM_WORLD.Get_rank()

    def barrier(self) -> None:
        _doze(self._mpi.COMM_WORLD.Ibarrier())

    def group(self, groups: list[list[int]]) -> Group:
        color = next(i for i, ranks in enumerate(groups) if self.rank in ranks)
        return _MpiGroup(self._mpi.IN_PLACE, self._mpi.COMM_WORLD.Split(color, self.rank))


class _MpiGroup:
    def __init__(self, in_place: Any, comm: Any) -> None:
        self._in_place, self._comm = in_place, comm

    def call(self, kind: Kind, source: Array, target: Array) -> Callable[[], object]:
        comm = self._comm
        match kind:
            case "all_gather":
                return lambda: _doze(comm.Iallgather(source, target))
            case "all_reduce":
                return lambda: _doze(comm.Iallreduce(self._in_place, target))
            case "all_to_all":
                return lambda: _doze(comm.Ialltoall(source, target))
            case "reduce_scatter":
                return lambda: _doze(comm.Ireduce_scatter_block(source, target))


def _doze(request: Any) -> None:
    while not request.Test():
        time.sleep(NAP_S)


def prepare(task: Task, group_of: Callable[[Collective], Group]) -> list[Callable[[], object]]:
    """The calls of a program, with all memory that they use allocated."""
    calls: dict[Operation, Callable[[], object]] = {}
    for operation in task.program:
        if operation in calls:
            continue
        if isinstance(operation, Matmul):
            m, n, k, batch = operation.m, operation.n, operation.k, operation.batch
            left, right, result = _zeros(batch, m, k), _zeros(batch, k, n), _zeros(batch, m, n)
            calls[operation] = partial(np.matmul, left, right, out=result)
        elif isinstance(operation, Copy):
            half = operation.n_bytes // ITEMSIZE_BYTES // 2
            calls[operation] = partial(np.copyto, _zeros(half), _zeros(half))
        else:
            whole = operation.n_bytes // ITEMSIZE_BYTES
            part = whole // task.members(operation)
            source = part if operation.kind == "all_gather" else whole
            target = part if operation.kind == "reduce_scatter" else whole
            calls[operation] = group_of(operation).call(
                operation.kind, _zeros(source), _zeros(target)
            )
    return [calls[operation] for operation in task.program]


def groups(mesh: tuple[int, ...], axes: tuple[int, ...]) -> list[list[int]]:
    """The ranks of each group along axes of a row-major mesh."""
    grid = np.moveaxis(np.arange(int(np.prod(mesh))).reshape(mesh), axes, range(-len(axes), 0))
    return grid.reshape(-1, int(np.prod([mesh[a] for a in axes]))).tolist()


def run(processes: Processes, tasks: list[Task], repeats: int) -> list[dict[str, Any]]:
    """Run all tasks; returns this process's start, end and sent bytes of each task and round."""
    known: dict[tuple[Any, ...], Group] = {}

    def group_of(task: Task, operation: Collective) -> Group:
        key = (task.mesh, operation.axes)
        if key not in known:
            known[key] = processes.group(groups(*key))
        return known[key]

    prepared = [prepare(task, lambda c, task=task: group_of(task, c)) for task in tasks]  # type: ignore[misc]
    seen: list[dict[str, Any]] = [{"start": [], "end": [], "sent_bytes": []} for _ in tasks]
    for number in range(repeats + 1):
        for calls, row in zip(prepared, seen, strict=True):
            processes.barrier()
            before = int(SENT.read_text())
            start = _next_tick()
            for call in calls:
                call()
            end = time.perf_counter()
            processes.barrier()
            if number:  # the first round makes connections and touches memory
                row["start"].append(start)
                row["end"].append(end)
                row["sent_bytes"].append(int(SENT.read_text()) - before)
    return seen


def _next_tick() -> float:
    """Sleep until the tick after the next one: others may leave a barrier after the next one."""
    now = time.perf_counter()
    tick = (now // TICK_S + 2) * TICK_S
    time.sleep(tick - now)
    return tick


def _zeros(*shape: int) -> Array:
    return np.full(shape, 0.0, np.float32)  # written, so that the memory is really allocated


def come_first() -> None:
    """Give this process and its later threads precedence over other work, if this is permitted.

    It mostly waits for the network; but if several programs shared a core, it would be some
    milliseconds late for every message.
    """
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def main(backend: str, folder: str, *rest: str) -> None:
    """Run the job in the folder's `job.json`."""
    job = json.loads(Path(folder, "job.json").read_text())
    processes: Processes
    if backend == "mpi":
        processes = Mpi()
        come_first()  # not earlier, because MPICH polls without sleeping while it starts
    else:
        come_first()
        processes = Gloo(int(rest[0]), int(rest[1]), rest[2])
    seen = run(processes, load(job["tasks"]), job["repeats"])
    Path(folder, f"{processes.rank}.json").write_text(json.dumps(seen))
    processes.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
