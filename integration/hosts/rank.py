"""One process of a lab: `mpiexec ... python rank.py FOLDER` runs the folder's job.json.

All schedules are run round by round, so that a slow minute of the machine meets all of them.
Where there is one process a host, each computes on a core of its own, with one thread.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

if not __package__:  # run by its path: make `import hosts` find the folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import frontends.jax as mw
import jax
import numpy as np
from frontends.jax.run.runtime import Runtime
from ranking.rank import come_first

from hosts.job import N_HOSTS, Job, train_step


def main(folder: Path) -> None:
    """Run the job, and write what was seen."""
    job = Job(**json.loads((folder / "job.json").read_text()))
    if job.processes_per_host == 1:
        _keep_to_core(int(os.environ["PMI_RANK"]))
    mw.init(N_HOSTS * job.processes_per_host)
    from mpi4py import MPI

    if job.processes_per_host == 1:
        come_first()  # not before: while it starts, MPICH looks without naps
    barrier = MPI.COMM_WORLD.Barrier
    arguments = job.arguments()
    params, opt_state, batch = arguments
    steps = {schedule: job.parallel(schedule) for schedule in job.schedules}
    runtimes = {schedule: step.compile(*arguments) for schedule, step in steps.items()}
    if job.processes_per_host == 1:
        _let_couriers_come_first()
    seen: dict[str, Any] = {"host": os.uname().nodename, "worst": 0.0, "steps": {}}
    states = dict.fromkeys(steps, (params, opt_state))
    expected: Any = (params, opt_state)
    for _ in range(2):  # also warms up
        *expected, _ = jax.jit(train_step)(*expected, batch)
        for schedule, step in steps.items():
            *state, _ = step(*states[schedule], batch)
            states[schedule] = tuple(state)
            seen["worst"] = max(seen["worst"], _worst(state[0], expected[0]))
    for _ in range(job.rounds):
        for schedule, step in steps.items():
            barrier()
            begun_s = time.perf_counter()
            *state, loss = step(*states[schedule], batch)
            jax.block_until_ready((loss, *jax.tree.leaves(state)))
            ended_s = time.perf_counter()
            states[schedule] = tuple(state)
            seen["steps"].setdefault(schedule, []).append((begun_s, ended_s))
    barrier()
    runtime = runtimes[job.schedules[0]]
    seen["chunks"] = _time_chunks(runtime, job.rounds, barrier)
    seen["transfers"] = [
        (t.phase, t.source, t.destination, t.n_bytes) for t in runtime.plan.transfers
    ]
    (folder / f"{jax.process_index()}.json").write_text(json.dumps(seen))
    barrier()


def _keep_to_core(host: int) -> None:
    """Compute on a core that no other host has, with one thread."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[host % len(cores)]})
    os.environ["NPROC"] = "1"


def _let_couriers_come_first() -> None:
    """They mostly sleep, so any scheduler but the one of `come_first` would wake them at once."""
    for thread in threading.enumerate():
        if thread.name == "courier" and thread.native_id is not None:
            with suppress(PermissionError):
                os.sched_setscheduler(thread.native_id, os.SCHED_RR, os.sched_param(2))


def _worst(ours: Any, expected: Any) -> float:
    """The largest difference of the shards that lie here, relative to the array's largest value."""
    found = [0.0]
    for array, whole in zip(ours, map(np.asarray, expected), strict=True):
        for shard in array.addressable_shards:
            difference = np.abs(np.asarray(shard.data) - whole[shard.index])
            found.append(float(difference.max() / np.abs(whole).max()))
    return max(found)


def _time_chunks(
    runtime: Runtime, rounds: int, barrier: Callable[[], None]
) -> list[tuple[int, int, float]]:
    """Stage, phase and median seconds of each program of this process, run by itself."""
    found = []
    for chunk, program in zip(runtime.program.chunks, runtime.programs, strict=True):
        if program is None:
            continue
        slots = (*chunk.totals, *chunk.reads)
        taken = [runtime.submeshes.abstract(chunk.stage, slot) for slot in slots]
        seconds = []
        for _ in range(rounds):
            operands = [  # new ones each time, as a program may write over them
                runtime.submeshes.put(np.ones(array.shape, array.dtype), array.sharding)
                for array in taken
            ]
            begun_s = time.perf_counter()
            jax.block_until_ready(program(*operands))
            seconds.append(time.perf_counter() - begun_s)
        found.append((chunk.stage, chunk.phase, median(seconds)))
    barrier()
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
