"""The command `shard`, and how the command `show` shows graphs and shardings."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from costmodel import Cluster, CostmodelError
from costmodel import presets as cluster_presets
from shardspec import Mesh, ShardspecError, Spec
from shardspec.amounts import bytes_of
from shardspec.cli.arguments import seconds
from shardspec.errors import AmountError

from autoshard.answer.diff import diff
from autoshard.answer.sharding import Sharding
from autoshard.base import record
from autoshard.cli.arguments import add_command, new_file
from autoshard.errors import AutoshardError, RecordError
from autoshard.graph.graph import Graph
from autoshard.picture import picture
from autoshard.shard import STEPS, shard
from autoshard.solvers.progress import ProgressLine
from autoshard.solvers.solve import METHODS
from autoshard.solvers.staged import Level
from autoshard.space.baseline import Baseline
from autoshard.space.options import MemoryRule

_EXAMPLES = """\
  python -m autoshard shard mlp.txt --mesh 4 --cluster two-hosts
  python -m autoshard shard mlp.json --mesh data=2,model=2 --cluster cluster.json --memory 16GiB
  python -m autoshard shard mlp.txt --mesh 2x2 --cluster two-hosts --pin w1=RS0 --out mlp.json
  python -m autoshard show mlp.json --explain w1 --picture mlp.png

A graph is the text of str(graph), or the JSON of graph.to_json()."""

_AXES = re.compile(r"[^=,\s]+=[0-9]{1,9}(?:,[^=,\s]+=[0-9]{1,9})*", re.ASCII)
_LENGTHS = re.compile(r"[0-9]{1,9}(?:x[0-9]{1,9})*", re.ASCII)


def add_shard(commands: Any) -> None:
    """Add the command to argparse's subparsers."""
    parser = add_command(
        commands,
        "shard",
        _in_one_line(_shard),
        what="find how to run the operators of a graph on a mesh",
        more="Finds the fastest sharding of a graph within the memory limit.",
        examples=_EXAMPLES,
    )
    add = parser.add_argument
    add("file", type=Path, metavar="GRAPH", help="file with the graph, as text or JSON")
    add("--mesh", type=_mesh, required=True, help="axes of the mesh: 2x4, or data=2,model=4")
    names = ", ".join(cluster_presets())
    add("--cluster", required=True, metavar="NAME", help=f"a JSON file, or one of {names}")
    add("--memory", type=_bytes, metavar="BYTES", help="limit of a device: 16GiB (no limit)")
    add(
        "--pin",
        type=_pin,
        action="append",
        default=[],
        metavar="VALUE=SPEC",
        help="spec in which an input is stored or a result computed; may be repeated",
    )
    add(
        "--memory-rule",
        choices=get_args(MemoryRule),
        default="limit",
        help="how the limit is kept: by the search, or by sharding the largest parameters first",
    )
    add("--restrict", choices=get_args(Baseline), help="store inputs as this baseline does")
    add("--time", type=seconds, default=60.0, metavar="SECONDS", help="each solve (%(default)g)")
    add(
        "--steps",
        type=_positive,
        default=STEPS,
        metavar="N",
        help="budget of a solve (%(default)s)",
    )
    add("--gap", type=_share, default=0.0, metavar="SHARE", help="stop at this gap (%(default)g)")
    add("--method", choices=tuple(METHODS), default="auto", help="how to solve (%(default)s)")
    add("--tie", action="store_true", help="repeated layers take the same strategies: faster")
    add("--coarse", choices=get_args(Level), help="choose for groups of operators: faster")
    add("--polish", action="store_true", help="then go on from there, for every operator")
    add("--no-compare", action="store_true", help="do not price the baselines")
    add("--uneven", action="store_true", help="dims may be split unevenly, with padding")
    add("--strided", action="store_true", help="shards may be strided")
    add(
        "--overlap",
        type=_share,
        default=0.0,
        metavar="SHARE",
        help="share of the communication that runs while devices compute (%(default)g)",
    )
    add("--bucket", type=_bytes, metavar="BYTES", help="report what buckets of this size save")
    add(
        "--in-flight",
        type=_positive,
        default=1,
        metavar="N",
        help="microbatches whose saved activations are held (%(default)s)",
    )
    add("--out", type=new_file, metavar="FILE", help="write the sharding to a file, as JSON")
    add("--picture", type=new_file, metavar="FILE", help="draw the sharding, .png or .svg")


def add_show_options(show: argparse.ArgumentParser) -> None:
    """Add the options of `show` that are for shardings."""
    add = show.add_argument
    add("--explain", metavar="NAME", help="for a sharding: why an operator or input is as it is")
    add("--diff", type=Path, metavar="FILE", help="for a sharding: compare with another one")
    add("--picture", type=new_file, metavar="FILE", help="for a sharding: draw it, .png or .svg")


def refuse_show_options(options: argparse.Namespace, what: str) -> None:
    """Raise `RecordError` if there are options for a sharding; `what` the file is instead."""
    if any(getattr(options, name) is not None for name in ("explain", "diff", "picture")):
        raise RecordError(f"--explain, --diff and --picture are for shardings; the file is {what}")


def shown(text: str, options: argparse.Namespace) -> str | None:
    """What `show` prints for a graph or a sharding; `None` if the text is neither."""
    kind = record.kind_of(text) if _is_json(text) else "graph"
    if kind == "sharding":
        return str(_in_one_line(_shown_sharding)(text, options))
    refuse_show_options(options, f"a {kind}" if kind else "a problem")
    if kind == "graph":
        return str(_graph(text))
    if kind is not None:
        raise RecordError(f"a document is a graph or a sharding; got {kind!r}")
    return None


def _shown_sharding(text: str, options: argparse.Namespace) -> str:
    sharding = Sharding.from_json(text)
    parts = []
    if options.explain is not None:
        parts.append(str(sharding.explain(options.explain)))
    if options.diff is not None:
        parts.append(
            str(diff(sharding, Sharding.from_json(options.diff.read_text(encoding="utf-8"))))
        )
    if options.picture is not None:
        picture(sharding, options.picture)
        parts.append(f"wrote {options.picture}")
    return "\n\n".join(parts) or str(sharding)


def _shard(options: argparse.Namespace) -> int:
    graph = _graph(options.file.read_text(encoding="utf-8"))
    cluster = _cluster(options.cluster)
    with ProgressLine(str(options.file)) as progress:
        sharding = shard(
            graph,
            options.mesh,
            cluster,
            memory_bytes=options.memory,
            memory_rule=options.memory_rule,
            in_flight=options.in_flight,
            restrict=options.restrict,
            pin=dict(options.pin),
            uneven=options.uneven,
            strided=options.strided,
            overlap=options.overlap,
            bucket_bytes=options.bucket,
            compare=not options.no_compare,
            tie=options.tie,
            coarse=options.coarse,
            polish=options.polish,
            method=options.method,
            time_s=options.time,
            steps=options.steps,
            gap=options.gap,
            progress=progress,
        )
    print(sharding)
    if options.out is not None:
        options.out.write_text(sharding.to_json(), encoding="utf-8")
    if options.picture is not None:
        picture(sharding, options.picture)
    if written := [str(path) for path in (options.out, options.picture) if path is not None]:
        print(f"\nwrote {' and '.join(written)}")
    return 0


def _is_json(text: str) -> bool:
    return text.lstrip().startswith("{")


def _graph(text: str) -> Graph:
    return Graph.from_json(text) if _is_json(text) else Graph.parse(text)


def _in_one_line(run: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with errors of shardspec and costmodel as `AutoshardError` with one line."""

    def wrapped(*arguments: Any) -> Any:
        try:
            return run(*arguments)
        except (ShardspecError, CostmodelError) as error:
            raise AutoshardError(str(error)) from error

    return wrapped


def _cluster(name: str) -> Cluster:
    path = Path(name)
    if path.is_file():
        return Cluster.from_json(path.read_text(encoding="utf-8"))
    return Cluster.preset(name)


def _mesh(text: str) -> Mesh:
    if _LENGTHS.fullmatch(text):
        lengths = [int(length) for length in text.split("x")]
        names = (
            ["x", "y", "z", "w"] if len(lengths) <= 4 else [f"a{i}" for i in range(len(lengths))]
        )
        axes = list(zip(names, lengths, strict=False))
    elif _AXES.fullmatch(text):
        axes = [(name, int(n)) for name, _, n in (axis.partition("=") for axis in text.split(","))]
    else:
        raise argparse.ArgumentTypeError(
            f"a mesh is written 2x4, or data=2,model=4 with the names of its axes; got {text!r}"
        )
    try:
        return Mesh(tuple(n for _, n in axes), tuple(name for name, _ in axes))
    except ShardspecError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _bytes(text: str) -> int:
    try:
        return bytes_of(text)
    except AmountError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _pin(text: str) -> tuple[str, Spec]:
    name, equals, spec = text.rpartition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"a pin is written VALUE=SPEC, as w1=RS0; got {text!r}")
    try:
        return name, Spec.parse(spec)
    except ShardspecError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _positive(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,8}", text):
        raise argparse.ArgumentTypeError(f"a count is a whole number >= 1; got {text!r}")
    return int(text)


def _share(text: str) -> float:
    if not re.fullmatch(r"0|1|0?\.[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"a share is a number from 0 to 1; got {text!r}")
    return float(text)
