"""The command line: plan a model for any cluster, show and compare plans, train, verify.

What can go wrong on purpose ends as one line and exit code 1, wrong usage as exit code 2. JAX and
PyTorch are imported by the commands that need one of them, after their arguments are checked.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from autoshard import AutoshardError
from costmodel import CostmodelError
from crossmesh import CrossmeshError
from pipesched import PipeschedError
from shardspec import ShardspecError
from stagecut import StagecutError

from frontends.answer.plan import Plan
from frontends.cli.demo.display import Display, make_console
from frontends.cli.demo.text import read_text, standard_library
from frontends.cli.plan_arguments import PlanArguments, takes_plan_arguments
from frontends.errors import FrontendsError, OutputError
from frontends.report.diff import diff, difference_tables
from frontends.report.html import write_page
from frontends.report.text import plan_tables

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Plan a training step written for one device, and run it on many.",
)

_INSTALLED_BY = {
    "jax": "'meshwright-frontends[jax]'",
    "optax": "'meshwright-frontends[jax]'",
    "torch": "'meshwright-frontends[torch]'",
    "transformers": "'meshwright-frontends[models]'",
}
"""What installs a package that a command may need, and that is not always there."""

Steps = Annotated[int, typer.Option(min=1, help="Training steps.")]
LearningRate = Annotated[float, typer.Option(min=0.0, help="Peak learning rate of AdamW.")]
Seed = Annotated[int, typer.Option(min=0, help="Of the weights and of the pieces of text.")]
Page = Annotated[
    Path | None, typer.Option("--html", help="Write the plan's page to this file, .html.")
]
Picture = Annotated[Path | None, typer.Option(help="Draw the plan to this file, .png or .svg.")]
SavedPlan = Annotated[Path, typer.Argument(metavar="PLAN.json", help="A plan that was saved.")]


@app.command()
@takes_plan_arguments
def plan(
    options: PlanArguments,
    save: Annotated[Path | None, typer.Option(help="Write the plan to this JSON file.")] = None,
    html: Page = None,
    picture: Picture = None,
) -> None:
    """Plan a model for any cluster, also for a larger one than this machine, and print the plan."""
    _check_outputs(save, html, picture)
    cluster, subject = options.where(), options.subject()
    how = options.how()
    console = make_console()
    with Display(console) as display:
        found = subject.plan(cluster, replace(how, progress=display))
    console.print(plan_tables(found))
    if save is not None:
        found.save(save)
    _write(found, html, picture)


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
        from frontends.report.picture import draw_timeline

        draw_timeline(loaded, timeline)


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(metavar="BEFORE.json", help="A saved plan.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER.json", help="Another one.")],
) -> None:
    """Print what two saved plans do differently, and what it costs."""
    make_console().print(difference_tables(diff(Plan.load(before), Plan.load(after))))


@app.command()
@takes_plan_arguments
def train(
    options: PlanArguments,
    data: Annotated[
        Path | None,
        typer.Option(help="File or folder to learn; Python's standard library if not set."),
    ] = None,
    steps: Steps = 150,
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
    checkpoints: Annotated[
        Path | None,
        typer.Option(help="Folder to keep state in, and to go on from if it has a checkpoint."),
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 50,
) -> None:
    """Plan a GPT of bytes, train it on virtual devices, and verify it."""
    saved = None if plan is None else Plan.load(plan)
    job = options.job(steps=steps, learning_rate=learning_rate, seed=seed, plan=saved)
    from frontends.cli.demo.train import Checkpoints
    from frontends.cli.demo.train import train as run
    from frontends.models.gpt import VOCABULARY

    if job.config.vocabulary < VOCABULARY:
        raise typer.BadParameter(
            f"text is learned byte by byte, for which a model needs {VOCABULARY} tokens; "
            f"{options.model} has {job.config.vocabulary}"
        )
    text = standard_library() if data is None else read_text(data)
    kept = None if checkpoints is None else Checkpoints(checkpoints, checkpoint_every)
    run(job, text, output, verify_steps, make_console(), kept)


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
        if error.name not in _INSTALLED_BY:
            raise
        how = _INSTALLED_BY[error.name]
        print(f"error: this command needs {error.name}: pip install {how}", file=sys.stderr)
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


def _check_outputs(save: Path | None, html: Path | None, picture: Path | None) -> None:
    """See that files can be written before a plan is searched, which may take minutes."""
    for path in (save, html, picture):
        if path is not None and not path.parent.is_dir():
            raise OutputError(
                f"what is planned is written to a file; {path}: there is no folder {path.parent}"
            )
    if picture is not None:
        from frontends.report.picture import check_name

        check_name(picture)


def _write(written: Plan, html: Path | None, picture: Path | None) -> None:
    if html is not None:
        write_page(written, html)
    if picture is not None:
        from frontends.report.picture import draw_plan

        draw_plan(written, picture)
