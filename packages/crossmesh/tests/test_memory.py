"""Planning does not leak: the memory of the process does not grow with the number of plans."""

import resource

from crossmesh import _core, plan
from shardspec import Layout, Mesh, Spec

MESH = Mesh((2, 2), ("x", "y"))
SRC, DST = (Layout((8, 4), MESH, Spec.parse(text)) for text in ("S[2]0R+P1", "S01R"))
HOSTS = {0: 0, 1: 0, 2: 1, 3: 1}


def peak_bytes():
    """The peak memory of this process, in bytes on Linux.

    Linux counts in KiB and macOS in bytes; taking these for KiB only makes the test stricter.
    """
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def make_plans(count):
    for _ in range(count):
        plan(SRC, DST, "float32", HOSTS)


def test_ten_thousand_plans_need_no_more_memory_than_a_thousand():
    make_plans(1000)
    before = peak_bytes()
    make_plans(9000)
    assert peak_bytes() - before < 2**20


def test_refused_tiles_are_freed():
    tiles = [[[(0, 2), (2, 4)]] * 500] * 2

    def refuse(count):
        for _ in range(count):
            try:
                _core.cells(tiles, tiles, 9)
            except ValueError:
                continue

    refuse(100)
    before = peak_bytes()
    refuse(1000)
    assert peak_bytes() - before < 2**20
