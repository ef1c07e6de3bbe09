"""Everything that reads what somebody else may have written, each with files that are right."""

from __future__ import annotations

import gzip
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import autoshard
import costmodel
import crossmesh
import frontends
import pipesched
import shardspec
import stagecut
from autoshard.cli.commands import main as autoshard_main
from autoshard.solvers.solution_json import solution_from_json, solution_to_json
from costmodel.cli import main as costmodel_main
from costmodel.profile import Profile
from crossmesh.cli.commands import main as crossmesh_main
from frontends import Plan
from frontends.cli.commands import main as frontends_main
from frontends.cli.demo.torch_models import from_config
from pipesched.cli import main as pipesched_main
from shardspec.notation import NOTATIONS, notation
from stagecut.cli.commands import main as stagecut_main

PACKAGES = Path(__file__).resolve().parents[2] / "packages"
ERRORS = (
    autoshard.AutoshardError,
    costmodel.CostmodelError,
    crossmesh.CrossmeshError,
    frontends.FrontendsError,
    pipesched.PipeschedError,
    shardspec.ShardspecError,
    stagecut.StagecutError,
)


@dataclass(frozen=True)
class Reader:
    """A function that reads a file, and files that it reads."""

    read: Callable[[Path], object]
    files: Callable[[], tuple[bytes, ...]]
    errors: tuple[type[Exception], ...]
    """What may be raised: the errors of its package."""
    suffix: str = ".json"
    is_command: bool = False
    """Whether it is a command, which ends with a status, and prints one line if it fails."""


def _text(read: Callable[[str], object]) -> Callable[[Path], object]:
    """The reader of a file for a function that takes text; bytes that are no text become some."""
    return lambda path: read(path.read_bytes().decode(errors="surrogateescape"))


def _command(main: Callable[[list[str]], object], *words: str) -> Callable[[Path], object]:
    """The reader of a file for a command, to whose words the path is added."""

    def run(path: Path) -> object:
        try:
            return main([*words, str(path)])
        except SystemExit as ended:
            return ended.code

    return run


@cache
def _plans() -> tuple[bytes, ...]:
    golden = PACKAGES / "frontends/tests/golden"
    return tuple((golden / f"plan_format_{number}.json").read_bytes() for number in (1, 2, 3))


@cache
def _clusters() -> tuple[bytes, ...]:
    names = ("p3.16xlarge:2", "h100-sxm", "two-hosts", "tpu-v4")
    return tuple(costmodel.Cluster.preset(name).to_json().encode() for name in names)


def _profiles() -> tuple[bytes, ...]:
    return ((PACKAGES / "costmodel/tests/small_profile.json").read_bytes(),)


def _problems() -> tuple[bytes, ...]:
    problem = {
        "name": "small",
        "nodes": {
            "intervals": [[0, 2], [1, 3], [0, 0]],
            "costs": [[5, 2], [1, 9], [0]],
            "usages": [[3, 8], [4, 1], [0]],
        },
        "edges": {"nodes": [[0, 1], [1, 2]], "costs": [[0, 6, 2, 0], [1, 1]]},
        "usage_limit": 10,
    }
    return (json.dumps({"problem": problem}).encode(),)


def _zipped_problems() -> tuple[bytes, ...]:
    return tuple(gzip.compress(content, mtime=0) for content in _problems())


@cache
def _sharding() -> autoshard.Sharding:
    builder = autoshard.GraphBuilder()
    x = builder.input("x", 8, 16)
    up, down = builder.parameter("up", 16, 64), builder.parameter("down", 64, 16)
    hidden = builder.apply("gelu", builder.dot(x, up, name="to_hidden"), name="act")
    builder.output(builder.dot(hidden, down, name="from_hidden"), whole=True)
    mesh = shardspec.Mesh((2, 2), ("x", "y"))
    return autoshard.shard(builder.build(), mesh, costmodel.Cluster.preset("two-hosts"))


def _graphs() -> tuple[bytes, ...]:
    return (_sharding().graph.to_json().encode(),)


def _graph_texts() -> tuple[bytes, ...]:
    return (str(_sharding().graph).encode(),)


def _shardings() -> tuple[bytes, ...]:
    return (_sharding().to_json().encode(),)


def _documents_of_shardings() -> tuple[bytes, ...]:
    return (autoshard.shardings_to_json((_sharding(), _sharding())).encode(),)


@cache
def _solutions() -> tuple[bytes, ...]:
    problem = autoshard.Problem.from_json(_problems()[0].decode())
    return (solution_to_json(autoshard.solve(problem, "auto")).encode(),)


@cache
def _stage_plans() -> tuple[bytes, ...]:
    def cost(first: int, last: int, submesh: tuple[int, int]) -> stagecut.StageCost:
        hosts, devices = submesh
        layers = last - first + 1
        return stagecut.StageCost(layers / (hosts * devices), layers << 28, layers << 26)

    plan = stagecut.plan_stages(
        4, (1, 4), n_microbatches=4, cost=cost, memory_bytes=4 << 30, alternatives=True
    )
    return (plan.to_json().encode(),)


@cache
def _transfers() -> tuple[bytes, ...]:
    src = shardspec.Layout((8, 8), shardspec.Mesh((2, 2), ("a", "b")), shardspec.Spec.parse("S0R"))
    mesh = shardspec.Mesh((1, 2), ("a", "b"), (4, 5))
    dst = shardspec.Layout((8, 8), mesh, shardspec.Spec.parse("RS1"))
    hosts = {device: device // 2 for device in range(6)}
    return (crossmesh.plan(src, dst, "float32", hosts=hosts).to_json().encode(),)


def _schedule() -> pipesched.Schedule:
    return pipesched.make("zb-h1", 2, 3)


def _schedules() -> tuple[bytes, ...]:
    return (_schedule().to_json().encode(), pipesched.make("1f1b", 2, 2).to_json().encode())


def _schedule_texts() -> tuple[bytes, ...]:
    return (str(_schedule()).encode(), str(pipesched.make("chimera", 2, 2)).encode())


def _schedule_tables() -> tuple[bytes, ...]:
    return (pipesched.to_torch_csv(_schedule()).encode(),)


def _programs() -> tuple[bytes, ...]:
    return (pipesched.lower(pipesched.make("1f1b", 2, 2)).to_json().encode(),)


def _layouts(name: str) -> Callable[[], tuple[bytes, ...]]:
    mesh = shardspec.Mesh((2, 2), ("a", "b"))
    layouts = [shardspec.Layout((8, 8), mesh, shardspec.Spec.parse(s)) for s in ("S0S1", "RS01")]
    return lambda: tuple(notation(name).dump(layout).encode() for layout in layouts)


def _layout(name: str) -> Callable[[Path], object]:
    mesh = shardspec.Mesh((2, 2), ("a", "b"))
    return _text(lambda text: notation(name).parse(text, shape=(8, 8), mesh=mesh))


def _configurations() -> tuple[bytes, ...]:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    return (json.dumps(config).encode(),)


def _index_of_weights(path: Path) -> object:
    from frontends.torch.state.files import opened

    with opened(path) as tensors:
        return dict(tensors)


def _indices() -> tuple[bytes, ...]:
    return (json.dumps({"metadata": {}, "weight_map": {"a": "a.safetensors"}}).encode(),)


def _stage_prices(path: Path) -> object:
    from stagecut.slice.price_requests import PriceCache

    cache = PriceCache(path.parent, "damaged")
    cache.path.write_bytes(path.read_bytes())
    try:
        return cache.read()
    finally:
        cache.path.unlink()


def _prices() -> tuple[bytes, ...]:
    rows = [
        ["0-1 1x2", [[1.0, 2, 3, 0.0, 4, "('a', 1)"]]],
        ["2-3 1x2", [[1.5, 2, 3, 0.0, 4, "None"]]],
    ]
    return ("\n".join(json.dumps(row) for row in rows).encode(),)


_FRONTENDS = (frontends.FrontendsError,)
_COSTMODEL = (costmodel.CostmodelError,)
_AUTOSHARD = (autoshard.AutoshardError,)
_STAGECUT = (stagecut.StagecutError,)
_CROSSMESH = (crossmesh.CrossmeshError,)
_PIPESCHED = (pipesched.PipeschedError,)
_SHARDSPEC = (shardspec.ShardspecError,)

READERS: Mapping[str, Reader] = {
    "frontends.Plan.load": Reader(Plan.load, _plans, _FRONTENDS),
    "frontends.Plan.html": Reader(lambda path: Plan.load(path).html(), _plans, _FRONTENDS),
    "frontends config.json": Reader(from_config, _configurations, _FRONTENDS),
    "frontends index of weights": Reader(_index_of_weights, _indices, _FRONTENDS),
    "costmodel.Cluster": Reader(_text(costmodel.Cluster.from_json), _clusters, _COSTMODEL),
    "costmodel.Profile.load": Reader(Profile.load, _profiles, _COSTMODEL),
    "autoshard.Graph": Reader(_text(autoshard.Graph.from_json), _graphs, _AUTOSHARD),
    "autoshard.Graph.parse": Reader(_text(autoshard.Graph.parse), _graph_texts, _AUTOSHARD, ".txt"),
    "autoshard.Sharding": Reader(_text(autoshard.Sharding.from_json), _shardings, _AUTOSHARD),
    "autoshard.shardings_from_json": Reader(
        _text(autoshard.shardings_from_json), _documents_of_shardings, _AUTOSHARD
    ),
    "autoshard.Problem": Reader(autoshard.Problem.from_file, _problems, _AUTOSHARD),
    "autoshard.Problem, gzipped": Reader(
        autoshard.Problem.from_file, _zipped_problems, _AUTOSHARD, ".json.gz"
    ),
    "autoshard solution": Reader(_text(solution_from_json), _solutions, _AUTOSHARD),
    "stagecut.StagePlan": Reader(_text(stagecut.StagePlan.from_json), _stage_plans, _STAGECUT),
    "stagecut.PriceCache": Reader(_stage_prices, _prices, ()),
    "crossmesh.TransferPlan": Reader(
        _text(crossmesh.TransferPlan.from_json), _transfers, _CROSSMESH
    ),
    "pipesched.Schedule": Reader(_text(pipesched.Schedule.from_json), _schedules, _PIPESCHED),
    "pipesched.Schedule.parse": Reader(
        _text(pipesched.Schedule.parse), _schedule_texts, _PIPESCHED, ".txt"
    ),
    "pipesched.from_torch_csv": Reader(
        _text(pipesched.from_torch_csv), _schedule_tables, _PIPESCHED, ".csv"
    ),
    "pipesched.Program": Reader(_text(pipesched.Program.from_json), _programs, _PIPESCHED),
    **{
        f"shardspec.notation.{name}": Reader(_layout(name), _layouts(name), _SHARDSPEC, ".txt")
        for name in NOTATIONS
    },
    "shardspec.Spec.parse": Reader(
        _text(shardspec.Spec.parse), lambda: (b"S0S1", b"RS01+P2"), _SHARDSPEC, ".txt"
    ),
    **{
        name: Reader(_command(main, *words), files, ERRORS, suffix, is_command=True)
        for name, main, words, files, suffix in (
            ("frontends show", frontends_main, ("show",), _plans, ".json"),
            ("frontends verify", frontends_main, ("verify",), _plans, ".json"),
            ("frontends plan --cluster", frontends_main, ("plan", "--model", "none", "--cluster"),
             _clusters, ".json"),
            ("autoshard show", autoshard_main, ("show",), _shardings, ".json"),
            ("autoshard show problem", autoshard_main, ("show",), _problems, ".json"),
            ("costmodel show", costmodel_main, ("show",), _profiles, ".json"),
            ("stagecut show", stagecut_main, ("show",), _stage_plans, ".json"),
            ("crossmesh show", crossmesh_main, ("show",), _transfers, ".json"),
            ("pipesched check", pipesched_main, ("check",), _schedules, ".json"),
            ("pipesched show", pipesched_main, ("show",), _schedule_tables, ".csv"),
        )
    },
}  # fmt: skip


def read(reader: Reader, path: Path) -> Any:
    """What a reader makes of a file, or the error of its package."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as that a profile is of another machine
        try:
            return reader.read(path)
        except reader.errors as error:
            return error
