"""What does the C++ core save when a transfer is planned?

Baseline: `crossmesh.reference`, the same algorithms in plain Python, under the same planner; both
plans are equal. A round plans one transfer of a 1024 x 4096 float32 matrix (16 MiB) between two
meshes that lie on hosts of four devices. More devices mean more slices, and an order among more of
them to search.

Not shown: what plans are worth on a network; `estimate_time_s` predicts that.
"""

import crossmesh.planner
import pytest
from crossmesh import plan, reference
from shardspec import Layout, Mesh, Spec

SHAPE = (1024, 4096)

TRANSFERS = {
    "2x2 S0S1 to 1x4 S1R": ((2, 2), "S0S1", (1, 4), "S1R"),
    "4x4 S0S1 to 4x4 S1S0": ((4, 4), "S0S1", (4, 4), "S1S0"),
    "4x8 S01R to 4x8 RS01": ((4, 8), "S01R", (4, 8), "RS01"),
}


def layout(mesh_shape, spec, first):
    mesh = Mesh(mesh_shape, ("x", "y"))
    devices = tuple(first + device for device in mesh.device_ids)
    return Layout(SHAPE, Mesh(mesh_shape, ("x", "y"), devices), Spec.parse(spec))


@pytest.mark.parametrize("transfer", TRANSFERS)
@pytest.mark.parametrize("core", ["python", "cpp"])
def test_plan(benchmark, monkeypatch, core, transfer):
    src_shape, src_spec, dst_shape, dst_spec = TRANSFERS[transfer]
    src = layout(src_shape, src_spec, 0)
    dst = layout(dst_shape, dst_spec, src.mesh.size)
    hosts = {device: device // 4 for device in (*src.mesh.device_ids, *dst.mesh.device_ids)}
    expected = plan(src, dst, "float32", hosts)
    if core == "python":
        monkeypatch.setattr(crossmesh.planner, "core", reference)

    made = benchmark.pedantic(plan, (src, dst, "float32", hosts), rounds=9, warmup_rounds=1)

    assert made == expected
    benchmark.extra_info["slices"] = len(made.tasks)
    if core == "cpp":
        benchmark.extra_info["baseline"] = f"test_plan[python-{transfer}]"
