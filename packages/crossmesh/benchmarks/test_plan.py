"""How long does it take to plan, and what does the C++ geometry save?

Baseline: `crossmesh.testing_geometry.cells`, the same intersections in plain Python, under the
same planner; both plans are equal. A round plans one transfer: case 4 of Table 2 of Zhuang et al.
(64 unit tasks); replicas, or distinct shards, between two meshes of 1,024 devices on hosts of
eight; or a state dict of 1,000 tensors from 64 to 32 devices, of five kinds of layouts but all of
different shapes (without the baseline, which takes too long). Not shown: what plans are worth on a
network; `simulate` predicts that.
"""

import crossmesh.search.unit_tasks
import pytest
from crossmesh import plan, testing_geometry
from shardspec import Layout, Mesh, Spec

LAYERS = [
    ((4096, 4096), "S0S1", "RS1"),
    ((4096,), "S0", "R"),
    ((4096, 11008), "S1S0", "S1R"),
    ((11008, 4096), "S01R", "RS1"),
    ((32000, 4096), "S0S1", "S1R"),
]


def mesh(shape, first):
    size = shape[0] * shape[1]
    return Mesh(shape, ("x", "y"), tuple(range(first, first + size)))


def tensor(shape, src_shape, src_spec, dst_shape, dst_spec):
    src, dst = mesh(src_shape, 0), mesh(dst_shape, src_shape[0] * src_shape[1])
    return Layout(shape, src, Spec.parse(src_spec)), Layout(shape, dst, Spec.parse(dst_spec))


def state_dict():
    src, dst = {}, {}
    for i in range(1000):
        (rows, *columns), src_spec, dst_spec = LAYERS[i % 5]
        pair = tensor((rows + 8 * (i // 5), *columns), (8, 8), src_spec, (4, 8), dst_spec)
        src[f"layer.{i}"], dst[f"layer.{i}"] = pair
    return src, dst


TRANSFERS = {
    "case 4": lambda: tensor((1024, 1024, 256), (2, 4), "RS01R", (2, 4), "S01RR"),
    "1024 to 1024": lambda: tensor((4096, 4096), (32, 32), "S0R", (32, 32), "RS0"),
    "1024 shards to 1024": lambda: tensor((4096, 4096), (32, 32), "S0S1", (32, 32), "S1S0"),
    "1000 tensors": state_dict,
}


@pytest.mark.parametrize(
    ("geometry", "transfer"),
    [
        ("python", "case 4"),
        ("cpp", "case 4"),
        ("python", "1024 to 1024"),
        ("cpp", "1024 to 1024"),
        ("python", "1024 shards to 1024"),
        ("cpp", "1024 shards to 1024"),
        ("cpp", "1000 tensors"),
    ],
)
def test_plan(benchmark, monkeypatch, geometry, transfer):
    src, dst = TRANSFERS[transfer]()
    devices_per_host = 4 if transfer == "case 4" else 8
    hosts = {device: device // devices_per_host for device in range(2048)}
    expected = plan(src, dst, "bfloat16", hosts)
    if geometry == "python":
        monkeypatch.setattr(crossmesh.search.unit_tasks, "core", testing_geometry)

    made = benchmark.pedantic(plan, (src, dst, "bfloat16", hosts), rounds=5, warmup_rounds=1)

    assert made == expected
    benchmark.extra_info["tasks"] = len(made.tasks)
    if geometry == "cpp" and transfer != "1000 tensors":
        benchmark.extra_info["baseline"] = f"test_plan[python-{transfer}]"
