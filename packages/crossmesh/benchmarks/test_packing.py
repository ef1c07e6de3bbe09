"""How fast are bytes packed from a strided shard, and unpacked into one?

A round packs 4 MiB, as much as a large chunk has, run by run, out of an array with gaps between its
runs into one buffer, or back; all memory was touched before. Gaps are as long as the runs, or a
quarter and a line. `memcpy` copies 4 MiB from contiguous memory to contiguous memory. The aim is
80 % of its rate for runs of 4 KiB and more; on a busy machine, packing runs of 4 to 16 KiB missed
it in some measurements. `numpy` is the same strided copy by assignment.

"of memcpy" compares a round with a memcpy just before it, each the third of three, by the median
over the rounds: what else the machine does meets both. That memcpy writes the buffer into which is
packed, or reads the one that is unpacked, so that only the strided side differs. `pytest -s` prints
it.

Not shown: contiguous shards, which are neither packed nor unpacked; more than one thread; chunks in
a core's own caches, of which runs of 4 KiB are copied at less than 80 %; chunks about as large as
the last cache allows, 8 MiB here, packed at less than 80 %; those of 16 MiB and more, which are
written past the caches.
"""

from statistics import median
from time import perf_counter

import numpy as np
import pytest
from crossmesh.base._native import core

N_BYTES = 4 * 2**20
ROUNDS = 50
GAPS = {"as-long": lambda run: run, "quarter": lambda run: run // 4 + 64}


def strided(run: int, gap: int) -> np.ndarray:
    """4 MiB in runs of some bytes, with gaps between them."""
    rows = np.random.default_rng(0).integers(0, 256, (N_BYTES // run, run + gap), np.uint8)
    return rows[:, :run].view(np.float32)


def test_memcpy(benchmark):
    src = np.random.default_rng(0).integers(0, 256, N_BYTES, np.uint8)
    dst = np.zeros_like(src)
    benchmark.pedantic(np.copyto, (dst, src), rounds=ROUNDS, warmup_rounds=2)
    np.testing.assert_array_equal(dst, src)


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("run", [4, 64, 1024, *(2**k * 1024 for k in (2, 3, 4, 6, 8, 10))])
@pytest.mark.parametrize("how", ["numpy", "pack", "unpack"])
def test_packing(benchmark, how, run, gap):
    array = strided(run, GAPS[gap](run))
    packed = np.frombuffer(array.tobytes(), np.uint8)
    row = packed.copy() if how == "unpack" else np.zeros(N_BYTES, np.uint8)
    target = strided(run, GAPS[gap](run))
    target[...] = 0
    copied, memcpy_s = np.zeros_like(packed), []

    def move():
        if how == "numpy":
            row.view(np.float32).reshape(array.shape)[...] = array
        elif how == "pack":
            core.pack(row, array, 0)
        else:
            core.unpack(target, 0, row)

    into, out_of = (copied, row) if how == "unpack" else (row, packed)

    def beside():
        for _ in range(3):
            start = perf_counter()
            np.copyto(into, out_of)
            copied_s = perf_counter() - start
        memcpy_s.append(copied_s)
        move()
        move()

    benchmark.pedantic(move, setup=beside, rounds=ROUNDS)

    into[...] = target[...] = 0  # also what memcpy wrote
    move()
    np.testing.assert_array_equal(row, packed)
    if how == "unpack":
        np.testing.assert_array_equal(target.view(np.uint32), array.view(np.uint32))
    benchmark.extra_info["baseline"] = "test_memcpy"
    if benchmark.enabled:
        moved_s = benchmark.stats.stats.data
        ratios = (a / b for a, b in zip(memcpy_s, moved_s, strict=True))
        benchmark.extra_info["of memcpy"] = f"{median(ratios):.0%}"
        print(f"\n{how} {run} {gap}: {benchmark.extra_info['of memcpy']} of memcpy")
