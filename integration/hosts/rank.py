"""One process of a lab: `mpiexec ... python rank.py FOLDER` runs the folder's job.json.

Each round runs all schedules once, so that a slow minute of the machine affects all of them. If
each host has one process, each process computes on its own core, with one thread.
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
    """Run the job and write the measurements."""
    job = Job(**json.loads((folder / "job.json").read_text()))
    if job.processes_per_host == 1:
        _keep_to_core(int(os.environ["PMI_RANK"]))
    mw.init(N_HOSTS * job.processes_per_host)
    from mpi4py import MPI

    if job.processes_per_host == 1:
        come_first()  # not earlier, because MPICH polls without sleeping while it starts
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
    for _ in range(2):  # to compare, and to warm up
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
    """Keep this process to a core that no other host uses, with one thread."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[host % len(cores)]})
    os.environ["NPROC"] = "1"


def _let_couriers_come_first() -> None:
    """Give the threads that transfer values a higher priority than the other threads.

    These threads mostly sleep, so the default scheduler would wake them at once, but the one that
    `come_first` sets would not.
    """
    for thread in threading.enumerate():
        if thread.name == "courier" and thread.native_id is not None:
            with suppress(PermissionError):
                os.sched_setscheduler(thread.native_id, os.SCHED_RR, os.sched_param(2))


def _worst(ours: Any, expected: Any) -> float:
    """The largest difference in this process's shards, relative to the array's largest value."""
    differences = [0.0]
    for array, whole in zip(ours, map(np.asarray, expected), strict=True):
        for shard in array.addressable_shards:
            difference = np.abs(np.asarray(shard.data) - whole[shard.index])
            differences.append(float(difference.max() / np.abs(whole).max()))
    return max(differences)


def _time_chunks(
    runtime: Runtime, rounds: int, barrier: Callable[[], None]
) -> list[tuple[int, int, float]]:
    """(stage, phase, median seconds) of each program of this process, each run alone."""
    times = []
    for chunk, program in zip(runtime.program.chunks, runtime.programs, strict=True):
        if program is None:
            continue
        slots = (*chunk.totals, *chunk.reads)
        shapes = [runtime.submeshes.abstract(chunk.stage, slot) for slot in slots]
        seconds = []
        for _ in range(rounds):
            operands = [  # new ones each time, because a program may overwrite them
                runtime.submeshes.put(np.ones(array.shape, array.dtype), array.sharding)
                for array in shapes
            ]
            begun_s = time.perf_counter()
            jax.block_until_ready(program(*operands))
            seconds.append(time.perf_counter() - begun_s)
        times.append((chunk.stage, chunk.phase, median(seconds)))
    barrier()
    return times


if __name__ == "__main__":
    main(Path(sys.argv[1]))
