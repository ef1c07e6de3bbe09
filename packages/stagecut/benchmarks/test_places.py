"""How long does it take to know what can be used together, and to lay stages down close together?

The states that the slicing needs are counted on equal hosts with their usual parts, for each kind
by itself if there are several, and found by exploring where parts do not divide the host. Stages
are laid down until their distance is proved least or 20,000 fillings of a host were tried: the
first three cases end by proof, the last has a few large stages that its small ones must bridge.

Not shown: that no assignment is nearer, which tests compare with all assignments on small clusters;
of the last case it is only known that none was found.
"""

import pytest
from stagecut import HostKind, Places, assign_devices
from stagecut.testing import pipeline_distance

BRIDGED = [(1, 1), (1, 8), (1, 2), (2, 8), (1, 4), (1, 1)]
"""Its small stages fill a host, but large ones lie between them."""


@pytest.mark.parametrize(
    ("hosts", "n_states"),
    [
        pytest.param(((HostKind(8), 128),), 1025, id="128x8"),
        pytest.param(((HostKind(8, "old"), 16), (HostKind(4, "new"), 16)), 129 * 65, id="kinds"),
        pytest.param(((HostKind(6, parts=(1, 2, 4, 6)), 16),), 561, id="16x6 with parts of 4"),
    ],
)
def test_states(benchmark, hosts, n_states):
    def states():
        places = Places(hosts)
        return places, [places.after(h) for h in range(len(places.shapes))]

    places, after = benchmark(states)
    assert places.n_states == n_states
    assert all(len(each) == n_states for each in after)


@pytest.mark.parametrize(
    ("submeshes", "cluster_shape", "most_between", "most_apart"),
    [
        pytest.param([(1, 8)] * 128, (128, 8), 0, 127, id="128 hosts"),
        pytest.param([(1, 1)] * 1024, (128, 8), 0, 127, id="1024 devices"),
        pytest.param([(1, 4)] * 32 + [(2, 8)] * 8, (32, 8), 0, 23, id="halves, then pairs"),
        pytest.param(
            [(1, 1), (1, 8), (1, 2), (2, 8), (1, 4), (1, 1)] * 3, (12, 8), 5, 15, id="mixed"
        ),
    ],
)
def test_assignment(benchmark, submeshes, cluster_shape, most_between, most_apart):
    grids = benchmark(assign_devices, submeshes, cluster_shape)
    hosts = [{row[0] // cluster_shape[1] for row in grid} for grid in grids]
    between, apart = pipeline_distance(hosts)
    assert between <= most_between
    assert apart <= most_apart
