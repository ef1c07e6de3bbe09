"""Questions to all packages whose answers are frozen; each answer is a text with all its parts."""

from __future__ import annotations

import gzip
import itertools
import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import autoshard
import costmodel
import crossmesh
import frontends
import frontends.jax
import frontends.torch
import pipesched
import shardspec
import torch
from autoddl.cases import transformer, vgg
from order.plans import CASES as ORDER
from shardspec import Layout, Mesh
from stagecut.cli.demo import demo
from stagecut.models import model
from torch_zoo.check import WAYS, loss_of
from torch_zoo.models import MODELS
from zoo.cases import FULL, SMALL, Case

INSTANCES = Path(__file__).resolve().parents[2] / "packages" / "autoshard" / "tests" / "instances"


def _said(plan: frontends.Plan) -> str:
    """A plan as JSON of format 2, in which the answers were frozen."""
    data = json.loads(plan.to_json())
    for stage, entry in zip(plan.stages, data["stages"], strict=True):
        if stage.sharding is not None:
            entry["sharding"] = json.loads(stage.sharding.to_json())
        entry["placements"] = [
            {
                "operator": p.operator,
                "phase": p.phase,
                "operands": list(map(str, p.operands)),
                "results": list(map(str, p.results)),
            }
            for p in stage.placements
        ]
    del data["options"], data["shardings"]
    return json.dumps(data | {"format": 2})


def _zoo(case: Case) -> str:
    example = case.example()
    planned = frontends.jax.plan_for(
        example.step,
        example.arguments,
        case.cluster,
        batch_argnums=example.batch_argnums,
        microbatches=case.microbatches,
        memory_bytes=case.memory_bytes,
    )
    return _said(planned.plan)


def _torch(name: str, way: str) -> str:
    case, chosen = MODELS[name], WAYS[way]
    torch.manual_seed(0)
    built = case.make().train()
    step = frontends.torch.parallelize(
        built,
        torch.optim.AdamW(built.parameters(), lr=1e-3),
        loss_of,
        case.batch(),
        cluster=chosen.cluster,
        strategy=chosen.strategy,
        microbatches=case.microbatches,
    )
    return _said(step.plan)


def _instance(name: str) -> str:
    packed = INSTANCES / f"asplos-2025-iopddl-{name}.json.gz"
    problem = autoshard.Problem.from_json(gzip.decompress(packed.read_bytes()).decode())
    solution = autoshard.solve(problem, time_s=300)
    return f"{solution.objective} {solution.choice}"


def _schedule(name: str, n_stages: int, n_microbatches: int) -> str:
    try:
        schedule = pipesched.make(name, n_stages, n_microbatches)
    except pipesched.ArgumentError as refused:
        return f"refused: {refused}"
    return schedule.to_json() + pipesched.lower(schedule).to_json()


def _transfer(seed: int) -> str:
    """The plan of a transfer between random layouts on two disjoint meshes."""
    drawn = random.Random(seed)
    shape = tuple(drawn.choice((4, 6, 8, 16)) for _ in range(3))
    sides = [drawn.choice(((1, 4), (2, 2), (2, 4), (4, 1))) for _ in range(2)]
    src = Mesh(sides[0], ("x", "y"))
    dst = Mesh(sides[1], ("x", "y"), tuple(len(src.device_ids) + d for d in range(_size(sides[1]))))
    specs = [autoshard.stored_specs(shape, side) for side in sides]
    layouts = [
        Layout(shape, mesh, drawn.choice(sorted(of, key=str)))
        for mesh, of in zip((src, dst), specs, strict=True)
    ]
    hosts = {device: device // 2 for mesh in (src, dst) for device in mesh.device_ids}
    return crossmesh.plan(layouts[0], layouts[1], "float32", hosts=hosts).to_json()


def _size(shape: tuple[int, int]) -> int:
    return shape[0] * shape[1]


def _reshards(seed: int) -> str:
    """The resharding of every pair of some random layouts on one mesh."""
    drawn = random.Random(seed)
    shape, mesh = (8, 12, 4), Mesh((2, 2, 2), ("x", "y", "z"))
    of = sorted(autoshard.stored_specs(shape, mesh.shape), key=str)
    layouts = [Layout(shape, mesh, spec) for spec in drawn.sample(of, 12)]
    pairs = itertools.permutations(layouts, 2)
    return "\n".join(str(shardspec.reshard(a, b)) for a, b in pairs)


def _slices(name: str, cluster: str) -> str:
    return demo(model(name), costmodel.Cluster.preset(cluster)).to_json()


def _prices(cluster: str) -> str:
    """The prices of all collectives over all devices, in several sizes."""
    of = costmodel.Cluster.preset(cluster)
    group = of.links(Mesh((of.n_devices,), ("x",))).group((0,))
    kinds: tuple[costmodel.CollectiveKind, ...] = (
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
    )
    priced = {
        f"{kind} {size}": costmodel.fastest(kind, size, group).seconds
        for kind in kinds
        for size in (1, 2**10, 2**20, 2**30)
    }
    return json.dumps(priced)


def _text(make: Callable[[int], object], n_devices: int) -> str:
    return str(make(n_devices))


def _plan(make: Callable[[], frontends.Plan]) -> str:
    return _said(make())


CASES: dict[str, Callable[[], str]] = {
    **{f"costmodel: {name}": partial(_prices, name) for name in costmodel.presets()},
    **{f"shardspec: pairs {seed}": partial(_reshards, seed) for seed in range(4)},
    **{f"crossmesh: random {seed}": partial(_transfer, seed) for seed in range(40)},
    **{
        f"pipesched: {name}, {stages} stages, {microbatches} microbatches": partial(
            _schedule, name, stages, microbatches
        )
        for name in pipesched.NAMES
        for stages, microbatches in ((2, 4), (4, 8), (8, 16))
    },
    **{
        f"stagecut: {name}": partial(_slices, name, "p3.16xlarge")
        for name in ("gpt-1.3b", "gpt-2.6b", "moe-2.4b", "wide-resnet-2b")
    },
    **{f"autoshard: IOPDDL {name}": partial(_instance, name) for name in "BG"},
    **{f"AutoDDL: VGG13 on {n}": partial(_text, vgg, n) for n in (16, 32, 64)},
    "AutoDDL: Transformer on 64": partial(_text, transformer, 64),
    **{f"order: {name}": partial(_plan, make) for name, make in ORDER.items()},
    **{f"torch: {name}, {way}": partial(_torch, name, way) for name in MODELS for way in WAYS},
    **{f"zoo: {name}": partial(_zoo, case) for name, case in (SMALL | FULL).items()},
}
"""The cases by name; the slow ones come last."""
