"""The command line: plan a model for any cluster, show and compare plans, train, verify.

What can go wrong on purpose ends as one line and exit code 1, wrong usage as exit code 2. JAX is
imported by the commands that need it, after their arguments are checked.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from autoshard import AutoshardError
from costmodel import Cluster, CostmodelError, presets
from crossmesh import CrossmeshError
from pipesched import PipeschedError
from shardspec import ShardspecError
from stagecut import StagecutError

from frontends.demo.display import Display, make_console
from frontends.demo.text import read_text, standard_library
from frontends.difference import diff, difference_tables
from frontends.errors import FrontendsError
from frontends.html import write_page
from frontends.plan import Plan
from frontends.planner import SCHEDULES, STRATEGIES
from frontends.report import plan_tables

if TYPE_CHECKING:
    from frontends.demo.train import Job

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Plan a training step written for one device, and run it on many.",
)

_DEFAULT_MODEL = "gpt-bytes"  # by name, as its module needs JAX

ModelName = Annotated[
    str, typer.Option("--model", metavar="NAME", help="gpt-bytes, gpt-350m, ..., gpt-39b.")
]
ClusterName = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="NAME[:HOSTS]|FILE",
        help="A preset, as p3.16xlarge:8, or a JSON file: what is planned for.",
    ),
]
Devices = Annotated[
    int | None, typer.Option(min=1, help="Devices of all hosts, instead of the cluster's.")
]
Hosts = Annotated[int | None, typer.Option(min=1, help="Hosts, instead of the cluster's.")]
Layers = Annotated[
    int | None, typer.Option(min=1, help="Transformer blocks, instead of the model's.")
]
DModel = Annotated[
    int | None, typer.Option("--d-model", min=1, help="Width, instead of the model's.")
]
Heads = Annotated[
    int | None, typer.Option(min=1, help="Attention heads of a block, instead of the model's.")
]
Sequence_ = Annotated[
    int | None, typer.Option("--sequence", min=1, help="Tokens seen at once, as well.")
]
Batch = Annotated[
    int | None, typer.Option(min=1, help="Sequences in a step, instead of the model's.")
]
Microbatches = Annotated[
    int | None, typer.Option(min=1, help="Parts that the batch is cut into; searched if not set.")
]


def _one_of(names: Sequence[str]) -> Callable[[str], str]:
    """What reads one of some names, which the planner has and not this module."""

    def parse(name: str) -> str:
        if name not in names:
            raise typer.BadParameter(f"one of {', '.join(names)}; got {name!r}")
        return name

    return parse


Schedule = Annotated[
    str | None,
    typer.Option(
        parser=_one_of(SCHEDULES),
        metavar="NAME",
        help=f"Order of the pipeline's work: {', '.join(SCHEDULES)}. Chosen if not set.",
    ),
]
Strategy = Annotated[
    str,
    typer.Option(
        parser=_one_of(STRATEGIES),
        metavar="NAME",
        help=f"What makes the plan: {', '.join(STRATEGIES)}.",
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(metavar="BYTES", help="Limit of one device, as 512MiB; the cluster's if not set."),
]
Steps = Annotated[int, typer.Option(min=1, help="Training steps.")]
LearningRate = Annotated[float, typer.Option(min=0.0, help="Peak learning rate of AdamW.")]
Seed = Annotated[int, typer.Option(min=0, help="Of the weights and of the pieces of text.")]
Page = Annotated[
    Path | None, typer.Option("--html", help="Write the plan's page to this file, .html.")
]
Picture = Annotated[Path | None, typer.Option(help="Draw the plan to this file, .png or .svg.")]
SavedPlan = Annotated[Path, typer.Argument(metavar="PLAN.json", help="A plan that was saved.")]


@app.command()
def plan(
    model: ModelName = _DEFAULT_MODEL,
    cluster: ClusterName = "two-hosts",
    devices: Devices = None,
    hosts: Hosts = None,
    layers: Layers = None,
    d_model: DModel = None,
    heads: Heads = None,
    sequence: Sequence_ = None,
    batch: Batch = None,
    microbatches: Microbatches = None,
    schedule: Schedule = None,
    strategy: Strategy = "auto",
    memory: Memory = None,
    save: Annotated[Path | None, typer.Option(help="Write the plan to this JSON file.")] = None,
    html: Page = None,
    picture: Picture = None,
) -> None:
    """Plan a model for any cluster, also for a larger one than this machine, and print the plan."""
    job = _job(
        model,
        (layers, d_model, heads, sequence),
        batch,
        cluster=_cluster(cluster, devices, hosts),
        steps=1,
        microbatches=microbatches,
        schedule=schedule,
        strategy=strategy,
        memory_bytes=_bytes(memory),
        learning_rate=0.0,
        seed=0,
    )
    from frontends.jax import plan_for

    console = make_console()
    with Display(console) as display:
        planned = plan_for(
            job.train_step, job.shapes(), job.cluster, progress=display, **job.options()
        )
    console.print(plan_tables(planned.plan))
    if save is not None:
        planned.plan.save(save)
    _write(planned.plan, html, picture)


@app.command()
def show(
    path: SavedPlan,
    explain: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Say why an operator or a value is as it is."),
    ] = None,
    html: Page = None,
    picture: Picture = None,
    timeline: Annotated[
        Path | None, typer.Option(help="Draw the pipeline to this file, .png or .svg.")
    ] = None,
) -> None:
    """Print a saved plan, or explain a part of it, and draw it."""
    loaded = Plan.load(path)
    console = make_console()
    if explain is None:
        console.print(plan_tables(loaded))
    else:
        console.print(str(loaded.explain(explain)), soft_wrap=True)
    _write(loaded, html, picture)
    if timeline is not None:
        from frontends.picture import draw_timeline

        draw_timeline(loaded, timeline)


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(metavar="BEFORE.json", help="A saved plan.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER.json", help="Another one.")],
) -> None:
    """Print what two saved plans do differently, and what it costs."""
    make_console().print(difference_tables(diff(Plan.load(before), Plan.load(after))))


@app.command()
def train(
    model: ModelName = _DEFAULT_MODEL,
    data: Annotated[
        Path | None,
        typer.Option(help="File or folder to learn; Python's standard library if not set."),
    ] = None,
    steps: Steps = 150,
    cluster: ClusterName = "two-hosts",
    devices: Devices = None,
    hosts: Hosts = None,
    layers: Layers = None,
    d_model: DModel = None,
    heads: Heads = None,
    sequence: Sequence_ = None,
    batch: Batch = None,
    microbatches: Microbatches = None,
    schedule: Schedule = None,
    strategy: Strategy = "auto",
    memory: Memory = None,
    learning_rate: LearningRate = 1e-3,
    seed: Seed = 0,
    plan: Annotated[
        Path | None,
        typer.Option(metavar="PLAN.json", help="Run this plan, instead of searching one."),
    ] = None,
    output: Annotated[
        Path, typer.Option(help="Folder for the plan, the pictures and the losses.")
    ] = Path("meshwright-train"),
    verify_steps: Annotated[
        int, typer.Option(min=0, help="Steps that a single device computes too, to compare.")
    ] = 10,
) -> None:
    """Plan a GPT of bytes, train it on virtual devices, and verify it."""
    job = _job(
        model,
        (layers, d_model, heads, sequence),
        batch,
        cluster=_cluster(cluster, devices, hosts),
        steps=steps,
        microbatches=microbatches,
        schedule=schedule,
        strategy=strategy,
        memory_bytes=_bytes(memory),
        learning_rate=learning_rate,
        seed=seed,
        plan=None if plan is None else Plan.load(plan),
    )
    from frontends.demo.gpt import VOCABULARY
    from frontends.demo.train import make_folder
    from frontends.demo.train import train as run

    if job.config.vocabulary < VOCABULARY:
        raise typer.BadParameter(
            f"text is learned byte by byte, for which a model needs {VOCABULARY} tokens; {model} "
            f"has {job.config.vocabulary}"
        )
    make_folder(output)
    text = standard_library() if data is None else read_text(data)
    run(job, text, output, verify_steps, make_console())


@app.command()
def verify(path: SavedPlan) -> None:
    """Check that the parts of a saved plan fit together and keep its limits.

    That a plan computes what one device does, and its programs send what it says, is checked by
    train --plan.
    """
    print(Plan.load(path).verify())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process.

    Args:
        arguments: Instead of those of the process.
    """
    try:
        app(args=arguments, prog_name="python -m frontends")
    except ModuleNotFoundError as error:
        if error.name not in ("jax", "optax"):
            raise
        print(
            f"error: this command needs {error.name}: pip install 'meshwright-frontends[jax]'",
            file=sys.stderr,
        )
        sys.exit(1)
    except (
        FrontendsError,
        AutoshardError,
        CostmodelError,
        CrossmeshError,
        PipeschedError,
        ShardspecError,
        StagecutError,
    ) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def _write(written: Plan, html: Path | None, picture: Path | None) -> None:
    if html is not None:
        write_page(written, html)
    if picture is not None:
        from frontends.picture import draw_plan

        draw_plan(written, picture)


def _job(
    model: str,
    sizes: tuple[int | None, int | None, int | None, int | None],
    batch: int | None,
    **options: Any,
) -> Job:
    """A model by its name, with other sizes where some were given."""
    from frontends.demo.models import MODELS
    from frontends.demo.train import Job

    if model not in MODELS:
        raise typer.BadParameter(f"--model is one of {', '.join(MODELS)}; got {model!r}")
    known = MODELS[model]
    names = ("n_layers", "d_model", "n_heads", "sequence")
    given: dict[str, Any] = {
        n: size for n, size in zip(names, sizes, strict=True) if size is not None
    }
    try:
        config = replace(known.config, **given)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return Job(config=config, batch=known.batch if batch is None else batch, **options)


def _cluster(name: str, devices: int | None, hosts: int | None) -> Cluster:
    """A preset or a file's cluster, with as many hosts and devices as asked for."""
    if name.partition(":")[0] in presets():
        found = Cluster.preset(name)
    else:
        try:
            found = Cluster.from_json(Path(name).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(
                f"--cluster is {', '.join(presets())} or a JSON file; {name}: {error}"
            ) from error
    n_hosts = found.n_hosts if hosts is None else hosts
    n_devices = n_hosts * found.devices_per_host if devices is None else devices
    if n_devices % n_hosts:
        raise typer.BadParameter(
            "every host has equally many devices, so --devices must be a multiple of --hosts; "
            f"got {n_devices} devices and {n_hosts} hosts"
        )
    return found.resized(n_hosts=n_hosts, devices_per_host=n_devices // n_hosts)


_UNITS = {
    f"{prefix}{infix}B": base**power
    for infix, base in (("", 1000), ("i", 1024))
    for power, prefix in enumerate("KMGT", 1)
}


def _bytes(text: str | None) -> int | None:
    """A size as people write it: 1000000, 512MiB, 1.5 gb."""
    if text is None:
        return None
    units = {"": 1, "B": 1} | {name.upper(): n_bytes for name, n_bytes in _UNITS.items()}
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip(), re.IGNORECASE)
    if match is None or match[2].upper() not in units:
        raise typer.BadParameter(
            f"--memory is a number of bytes, or of {', '.join(_UNITS)}; got {text!r}"
        )
    return int(float(match[1]) * units[match[2].upper()])
