"""A trainer of two ranks, and engines of two ranks and one; test_sync_jobs.py runs this program.

`sync_ranks.py FOLDER SEED KILLS`: processes of random jobs are killed while versions are published,
and their jobs are started again. Every engine writes down which version it put in place at which
call of `apply`, after it has compared all its weights with those of that version.
"""

import contextlib
import os
import random
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from crossmesh.sync import maps
from crossmesh.torch import Publisher, Subscriber
from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor

N_VERSIONS = 12
ENGINES = {"a": 2, "b": 1}
LIMITS = {"deadline_s": 40.0, "connect_s": 5.0, "silent_s": 3.0}
SHAPES = {"q_proj": (64, 32), "k_proj": (16, 32), "v_proj": (16, 32)}


def joined(folder, job, start, rank, size):
    store = dist.FileStore(str(folder / f"{job}-{start}"), size)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=20)
    )
    return dist.FileStore(str(folder / "meeting"), -1)


def trainer(folder, start, rank):
    store = joined(folder, "trainer", start, rank, 2)
    mesh = DeviceMesh("cpu", [0, 1])
    weights = {
        f"{name}.weight": distribute_tensor(torch.zeros(shape), mesh, [Shard(i % 2)])
        for i, (name, shape) in enumerate(SHAPES.items())
    }
    with Publisher(weights, store, host=f"trainer {rank}", **LIMITS) as publisher:
        has_published = False
        while publisher.version < N_VERSIONS or not has_published:
            has_published = True  # one that was started again has nothing to send before
            for value in weights.values():
                value.to_local().fill_(publisher.version + 1)
            publisher.publish()
            dist.barrier()
            time.sleep(0.3)
        while not (folder / "stop").exists():
            time.sleep(0.05)


def engine(folder, name, start, rank):
    size = ENGINES[name]
    store = joined(folder, f"engine-{name}", start, rank, size)
    if name == "a":
        rows = sum(shape[0] for shape in SHAPES.values()) // size
        state = {"qkv_proj.weight": torch.zeros(rows, 32, dtype=torch.bfloat16)}
        weights, local = maps.engine(rank, size), state
    else:
        mesh = DeviceMesh("cpu", [*range(size)])
        state = {
            f"{module}.weight": distribute_tensor(torch.zeros(shape), mesh, [Shard(1)])
            for module, shape in SHAPES.items()
        }
        weights, local = None, {key: value.to_local() for key, value in state.items()}
    log = folder / f"log-{name}-{start}-{rank}"
    with (
        Subscriber(state, store, weights, replica=name, host=f"engine {name}", **LIMITS) as engine,
        log.open("w") as lines,
    ):
        call = 0
        while engine.version < N_VERSIONS:
            applied = engine.apply()
            if applied is not None:
                values = {x for value in local.values() for x in value.flatten().tolist()}
                print(call, applied, values == {float(applied)}, file=lines, flush=True)
            call += 1
            time.sleep(0.01)


def begin(folder, job, start):
    """Fork the processes of a job; returns their ids."""
    size = ENGINES.get(job, 2)
    processes = []
    for rank in range(size):
        process = os.fork()
        if not process:
            status = 1
            try:
                if job == "trainer":
                    trainer(folder, start, rank)
                else:
                    engine(folder, job, start, rank)
                status = 0
            except BaseException:
                (folder / f"error-{job}-{start}-{rank}").write_text(traceback.format_exc())
            os._exit(status)
        processes.append(process)
    return processes


def main(folder, seed, kills):
    choose = random.Random(seed)
    starts = dict.fromkeys(["trainer", *ENGINES], 0)
    running = {job: begin(folder, job, 0) for job in starts}
    killed = []
    for _ in range(kills):
        time.sleep(choose.uniform(0.5, 2.5))
        job = choose.choice([*starts])
        if any(os.waitpid(p, os.WNOHANG)[0] for p in running[job]):
            running[job] = []
            break  # it is at its end
        os.kill(choose.choice(running[job]), signal.SIGKILL)
        killed.append(f"{job}-{starts[job]}")
        time.sleep(choose.uniform(0.0, 1.0))
        for process in running[job]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        starts[job] += 1
        running[job] = begin(folder, job, starts[job])
    status = 0
    for job in [*ENGINES, "trainer"]:
        if job == "trainer":
            (folder / "stop").touch()
        for process in running[job]:
            status |= os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    (folder / "killed").write_text(" ".join(killed))
    (folder / "starts").write_text(" ".join(f"{job}-{n}" for job, n in starts.items()))
    return status


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
