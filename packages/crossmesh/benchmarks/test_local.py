"""What does it cost to move a tensor between meshes of one process?

Baseline: numpy, as one writes it by hand: join the source shards, copy each destination shard out.
A round moves a 1024 x 4096 float32 matrix (16 MiB) from a 2 x 2 mesh, where it is S0S1, to a 1 x 4
mesh; the plan is made before. `memcpy` copies the 16 MiB once, without slicing.

Not shown: small tensors, where the time of Python's calls is most of it; replicated tensors, of
which `LocalTransport` makes one copy for all devices; more than one thread.
"""

import numpy as np
import pytest
from crossmesh import LocalTransport, plan
from crossmesh.testing import check_delivery, shards_of
from shardspec import Layout, Mesh, Spec

WHOLE = np.random.default_rng(0).random((1024, 4096), np.float32)
SOURCE = Layout(WHOLE.shape, Mesh((2, 2), ("x", "y"), (0, 1, 2, 3)), Spec.parse("S0S1"))
TARGET = Mesh((1, 4), ("x", "y"), (4, 5, 6, 7))
ROUNDS = 15


def by_hand(target, shards):
    whole = np.block([[shards[0], shards[1]], [shards[2], shards[3]]])
    return {device: whole[target.slices(device)].copy() for device in target.mesh.device_ids}


def test_memcpy(benchmark):
    copy = benchmark.pedantic(WHOLE.copy, rounds=ROUNDS, warmup_rounds=1)
    np.testing.assert_array_equal(copy, WHOLE)


@pytest.mark.parametrize("spec", ["S1R", "RS1"])
@pytest.mark.parametrize("how", ["numpy", "LocalTransport"])
def test_move(benchmark, how, spec):
    target = Layout(WHOLE.shape, TARGET, Spec.parse(spec))
    shards = {device: part.copy() for device, part in shards_of(SOURCE, WHOLE).items()}
    made = plan(SOURCE, target, WHOLE.dtype)
    transport = LocalTransport(made)

    def move():
        return by_hand(target, shards) if how == "numpy" else transport(shards)

    received = benchmark.pedantic(move, rounds=ROUNDS, warmup_rounds=1)

    check_delivery(made, WHOLE, received)
    if how == "LocalTransport":
        benchmark.extra_info["baseline"] = f"test_move[numpy-{spec}]"
