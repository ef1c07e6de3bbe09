"""The command line: train the demo, plan it for any cluster, show a plan.

What can go wrong on purpose ends as one line and exit code 1, wrong usage as exit code 2. JAX is
imported by the commands that need it, after their arguments are checked.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from autoshard import AutoshardError
from costmodel import Cluster, CostmodelError, presets
from crossmesh import CrossmeshError
from pipesched import PipeschedError
from shardspec import ShardspecError
from stagecut import StagecutError

from frontends.demo.display import Display, make_console
from frontends.demo.text import read_text, standard_library
from frontends.errors import FrontendsError
from frontends.plan import Plan
from frontends.report import plan_tables

if TYPE_CHECKING:
    from frontends.demo.train import Job

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Plan a training step written for one device, and run it on many.",
)

ClusterName = Annotated[
    str,
    typer.Option(
        "--cluster", metavar="NAME|FILE", help="A preset, or a JSON file: what is planned for."
    ),
]
Devices = Annotated[
    int | None, typer.Option(min=1, help="Devices of all hosts, instead of the cluster's.")
]
Hosts = Annotated[int | None, typer.Option(min=1, help="Hosts, instead of the cluster's.")]
Layers = Annotated[int, typer.Option(min=1, help="Transformer blocks of the GPT.")]
DModel = Annotated[int, typer.Option("--d-model", min=1, help="Width of the GPT.")]
Heads = Annotated[int, typer.Option(min=1, help="Attention heads of a block.")]
Sequence_ = Annotated[
    int, typer.Option("--sequence", min=1, help="Bytes that the GPT sees at once.")
]
Batch = Annotated[int, typer.Option(min=1, help="Sequences in a step.")]
Microbatches = Annotated[
    int | None, typer.Option(min=1, help="Parts that the batch is cut into; searched if not set.")
]
ScheduleName = Literal["gpipe", "1f1b", "eager-1f1b"]
Schedule = Annotated[ScheduleName, typer.Option(help="Order of the pipeline's work.")]
Memory = Annotated[
    str | None,
    typer.Option(metavar="BYTES", help="Limit of one device, as 512MiB; the cluster's if not set."),
]
Steps = Annotated[int, typer.Option(min=1, help="Training steps.")]
LearningRate = Annotated[float, typer.Option(min=0.0, help="Peak learning rate of AdamW.")]
Seed = Annotated[int, typer.Option(min=0, help="Of the weights and of the pieces of text.")]


@app.command()
def train(
    data: Annotated[
        Path | None,
        typer.Option(help="File or folder to learn; Python's standard library if not set."),
    ] = None,
    steps: Steps = 150,
    cluster: ClusterName = "two-hosts",
    devices: Devices = None,
    hosts: Hosts = None,
    layers: Layers = 4,
    d_model: DModel = 128,
    heads: Heads = 4,
    sequence: Sequence_ = 128,
    batch: Batch = 16,
    microbatches: Microbatches = None,
    schedule: Schedule = "1f1b",
    memory: Memory = None,
    learning_rate: LearningRate = 1e-3,
    seed: Seed = 0,
    output: Annotated[
        Path, typer.Option(help="Folder for the plan, the pictures and the losses.")
    ] = Path("meshwright-train"),
    verify_steps: Annotated[
        int, typer.Option(min=0, help="Steps that a single device computes too, to compare.")
    ] = 10,
) -> None:
    """Plan a byte-level GPT, train it on virtual devices, and verify it."""
    from frontends.demo.train import make_folder
    from frontends.demo.train import train as run

    job = _job(
        cluster=_cluster(cluster, devices, hosts),
        model=(layers, d_model, heads, sequence),
        steps=steps,
        batch=batch,
        microbatches=microbatches,
        schedule=schedule,
        memory_bytes=_bytes(memory),
        learning_rate=learning_rate,
        seed=seed,
    )
    make_folder(output)
    text = standard_library() if data is None else read_text(data)
    run(job, text, output, verify_steps, make_console())


@app.command()
def plan(
    cluster: ClusterName = "two-hosts",
    devices: Devices = None,
    hosts: Hosts = None,
    layers: Layers = 4,
    d_model: DModel = 128,
    heads: Heads = 4,
    sequence: Sequence_ = 128,
    batch: Batch = 16,
    microbatches: Microbatches = None,
    schedule: Schedule = "1f1b",
    memory: Memory = None,
    save: Annotated[Path | None, typer.Option(help="Write the plan to this JSON file.")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the plan to this file, .png or .svg.")
    ] = None,
) -> None:
    """Plan the GPT for any cluster, also for a larger one than this machine, and print the plan."""
    from frontends.jax import plan_for

    job = _job(
        cluster=_cluster(cluster, devices, hosts),
        model=(layers, d_model, heads, sequence),
        steps=1,
        batch=batch,
        microbatches=microbatches,
        schedule=schedule,
        memory_bytes=_bytes(memory),
        learning_rate=0.0,
        seed=0,
    )
    console = make_console()
    with Display(console) as display:
        planned = plan_for(
            job.train_step, job.shapes(), job.cluster, progress=display, **job.options()
        )
    console.print(plan_tables(planned.plan))
    if save is not None:
        planned.plan.save(save)
    if picture is not None:
        _draw(planned.plan, picture)


@app.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="PLAN.json", help="A plan that was saved.")],
    picture: Annotated[
        Path | None, typer.Option(help="Draw the plan to this file, .png or .svg.")
    ] = None,
    timeline: Annotated[
        Path | None, typer.Option(help="Draw the pipeline to this file, .png or .svg.")
    ] = None,
) -> None:
    """Print a saved plan, and draw it."""
    loaded = Plan.load(path)
    make_console().print(plan_tables(loaded))
    if picture is not None:
        _draw(loaded, picture)
    if timeline is not None:
        from frontends.picture import draw_timeline

        draw_timeline(loaded, timeline)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process.

    Args:
        arguments: Instead of those of the process.
    """
    try:
        app(args=arguments, prog_name="python -m frontends")
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


def _draw(drawn: Plan, path: Path) -> None:
    from frontends.picture import draw_plan

    draw_plan(drawn, path)


def _job(
    *,
    cluster: Cluster,
    model: tuple[int, int, int, int],
    steps: int,
    batch: int,
    microbatches: int | None,
    schedule: str,
    memory_bytes: int | None,
    learning_rate: float,
    seed: int,
) -> Job:
    from frontends.demo.gpt import GPTConfig
    from frontends.demo.train import Job

    try:
        config = GPTConfig(*model)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return Job(
        config, cluster, steps, batch, microbatches, schedule, memory_bytes, learning_rate, seed
    )


def _cluster(name: str, devices: int | None, hosts: int | None) -> Cluster:
    """A preset or a file's cluster, with as many hosts and devices as asked for."""
    if name in presets():
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
