"""How fast are bytes packed from a strided shard, and unpacked into one?

A round packs 4 MiB, as much as a large chunk has, out of rows of twice the length into one buffer,
or back, run by run; all memory was touched before. `memcpy` copies 4 MiB from contiguous memory to
contiguous memory. The aim is 80 % of it for runs of 4 KiB and more. `numpy` is the same strided
copy by assignment.

Not shown: contiguous shards, which are neither packed nor unpacked; more than one thread; sizes
beyond the caches, where glibc's memcpy writes past them (`x86_non_temporal_threshold`), and a copy
in runs does not.
"""

import numpy as np
import pytest
from crossmesh._native import core

N_BYTES = 4 * 2**20
ROUNDS = 50


def strided(run: int) -> np.ndarray:
    """4 MiB in runs of some bytes, with gaps as long between them."""
    rows = np.random.default_rng(0).integers(0, 256, (N_BYTES // run, 2 * run), np.uint8)
    return rows.view(np.float32)[:, : run // 4]


def test_memcpy(benchmark):
    src = np.random.default_rng(0).integers(0, 256, N_BYTES, np.uint8)
    dst = np.zeros_like(src)
    benchmark.pedantic(np.copyto, (dst, src), rounds=ROUNDS, warmup_rounds=2)
    np.testing.assert_array_equal(dst, src)


@pytest.mark.parametrize("run", [4, 64, 1024, 4096, 65536])
@pytest.mark.parametrize("how", ["numpy", "pack", "unpack"])
def test_packing(benchmark, how, run):
    array = strided(run)
    packed = np.frombuffer(array.tobytes(), np.uint8)
    row = packed.copy() if how == "unpack" else np.zeros(N_BYTES, np.uint8)
    target = strided(run)
    target[...] = 0

    def move():
        if how == "numpy":
            row.view(np.float32).reshape(array.shape)[...] = array
        elif how == "pack":
            core.pack(row, array, 0)
        else:
            core.unpack(target, 0, row)

    benchmark.pedantic(move, rounds=ROUNDS, warmup_rounds=2)

    np.testing.assert_array_equal(row, packed)
    if how == "unpack":
        np.testing.assert_array_equal(target.view(np.uint32), array.view(np.uint32))
    benchmark.extra_info["baseline"] = "test_memcpy"
