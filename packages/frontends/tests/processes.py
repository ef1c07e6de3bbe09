"""The processes of test_processes.py: `mpiexec -n N processes.py STORY FOLDER`. Each writes what
became of it to FOLDER/rank.json, and its errors to rank.err."""

import json
import os
import random
import signal
import sys
from pathlib import Path

import frontends.jax as mw
import jax
import numpy as np
from costmodel import Cluster
from frontends.jax.runtime import Runtime
from frontends.jax.testing import EXAMPLES
from frontends.layers import layer
from frontends.testing import random_plan
from shardspec import Mesh

DEADLINE_S = 15.0

STORIES = {  # example, schedule, devices of all processes, devices of each stage
    "unequal": ("mlp", "eager-1f1b", 7, ((1, 2), (3,), (4, 6))),
    "v": ("tied", "zb-v", 4, ((0, 1), (2, 3), (2, 3), (0, 1))),
    "stopped": ("mlp", "1f1b", 4, ((0, 1), (2, 3))),
}
AT_FAULT = 2


def main(story: str, folder: Path) -> None:
    name, schedule, n_devices, meshes = STORIES[story]
    mw.init(n_devices)
    me = jax.process_index()
    # A launcher loses what processes print when one of them has ended.
    os.dup2(os.open(folder / f"{me}.err", os.O_CREAT | os.O_WRONLY), sys.stderr.fileno())
    example = EXAMPLES[name]()
    traced = example.trace(4)
    layered = layer(traced.step, 4)
    stages = [Mesh((len(ids),), ("x",), ids) for ids in meshes]
    plan = random_plan(layered, stages, random.Random(0), schedule)
    run = Runtime(traced, layered, plan, Cluster.preset("two-hosts"), deadline_s=DEADLINE_S)
    assert [p is None for p in run.programs] == [
        me not in run.submeshes.processes(plan.stages[c.stage].mesh) for c in run.chunks
    ]
    leaves = jax.tree.leaves(example.arguments)
    n_batch = len(jax.tree.leaves(example.batch))
    theirs = example.arguments
    single = jax.jit(example.function)
    worst, losses = 0.0, []
    for step in range(3):
        if (story, step, me) == ("stopped", 2, AT_FAULT):
            os.kill(os.getpid(), signal.SIGSTOP)
        results = run(leaves)
        theirs = (*single(*theirs)[:2], example.batch)
        for ours, expected in zip(results, jax.tree.leaves(theirs[:2]), strict=False):
            for shard in ours.addressable_shards:
                whole = np.asarray(expected, np.float64)
                error = np.abs(np.asarray(shard.data, np.float64) - whole[shard.index])
                worst = max(worst, float(error.max(initial=0)) / max(np.abs(whole).max(), 1e-6))
        losses.append(float(results[-1]))
        leaves = [*results[:-1], *leaves[-n_batch:]]
    found = {"worst": worst, "losses": losses, "devices": jax.local_device_count()}
    Path(folder, f"{me}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
