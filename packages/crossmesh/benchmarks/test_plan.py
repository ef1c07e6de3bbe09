"""How long does it take to plan, and what does the C++ geometry save?

Baseline: `crossmesh.testing_geometry.cells`, the same intersections in plain Python, under the
same planner; both plans are equal. A round plans one transfer: case 4 of Table 2 of Zhuang et al.
(64 unit tasks); replicas, or distinct shards, between two meshes of 1,024 devices on hosts of
eight; or a state dict of 1,000 tensors from 64 to 32 devices, of five kinds of layouts but all of
different shapes (without the baseline, which takes too long). How time grows is shown by one round
each of rows to columns on 100, 300 and 1,000 devices (as many pieces as the square of this), by 640
tensors from 4,096 to 1,024 devices, and by the 1,137 tensors of Llama-3-405B from 16,384 to 64. Not
shown: what plans are worth on a network; `simulate` predicts that.
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


def rows_to_columns(n):
    rows, columns = (Mesh((n,), ("x",), tuple(range(first, first + n))) for first in (0, n))
    src = Layout((3000, 3000), rows, Spec.parse("S0R"))
    return src, Layout((3000, 3000), columns, Spec.parse("RS0"))


def many_tensors():
    """640 tensors on 512 hosts that split both dims, to 128 hosts that each have all of them."""
    trainer, engines = mesh((512, 8), 0), mesh((128, 8), 4096)
    src, dst = {}, {}
    for i in range(640):
        shape, spec = ((8192, 1024), "S0S1") if i % 2 else ((1024, 8192), "S1S0")
        src[f"t{i}"] = Layout(shape, trainer, Spec.parse(spec))
        dst[f"t{i}"] = Layout(shape, engines, Spec.parse("RS1" if i % 4 < 2 else "S1R"))
    return src, dst


def llama_405b():
    """Llama-3-405B of 16 stages, each sharded 128 ways and cut 8 ways, to an engine of 64."""
    stages = [mesh((128, 8), stage * 1024) for stage in range(16)]
    engine = mesh((8, 8), 16384)
    src, dst = {}, {}

    def add(name, stage, shape, src_spec, dst_spec):
        src[name] = Layout(shape, stages[stage], Spec.parse(src_spec))
        dst[name] = Layout(shape, engine, Spec.parse(dst_spec))

    columns, rows, norm = ("S10R", "S01R"), ("S0S1", "RS01"), ("S0", "R")
    for i in range(126):
        for name, shape, specs in (
            ("q", (16384, 16384), columns),
            ("k", (1024, 16384), columns),
            ("v", (1024, 16384), columns),
            ("o", (16384, 16384), rows),
            ("gate", (53248, 16384), columns),
            ("up", (53248, 16384), columns),
            ("down", (16384, 53248), rows),
            ("attention_norm", (16384,), norm),
            ("mlp_norm", (16384,), norm),
        ):
            add(f"layers.{i}.{name}", i * 16 // 126, shape, *specs)
    add("embedding", 0, (128256, 16384), *columns)
    add("head", 15, (128256, 16384), *columns)
    add("norm", 15, (16384,), *norm)
    return src, dst


GROWTH = {
    "100 rows to columns": (lambda: rows_to_columns(100), 10_000),
    "300 rows to columns": (lambda: rows_to_columns(300), 90_000),
    "1000 rows to columns": (lambda: rows_to_columns(1000), 1_000_000),
    "640 tensors, 4096 to 1024": (many_tensors, 2_621_440),
    "Llama-3-405B, 16384 to 64": (llama_405b, 2_744_044),
}


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


@pytest.mark.parametrize(
    "transfer",
    [
        pytest.param(name, marks=[pytest.mark.nightly] if n_pieces >= 1_000_000 else [])
        for name, (_, n_pieces) in GROWTH.items()
    ],
)
def test_growth(benchmark, transfer):
    make, n_pieces = GROWTH[transfer]
    src, dst = make()
    hosts = {device: device // 8 for device in range(16448)}

    made = benchmark.pedantic(plan, (src, dst, "bfloat16", hosts), rounds=1)

    moved = {id(task.pieces): len(task.pieces) for task in made.tasks}  # by tasks that share them
    assert sum(moved.values()) == n_pieces
    benchmark.extra_info["tasks"] = len(made.tasks)
    benchmark.extra_info["pieces"] = n_pieces
