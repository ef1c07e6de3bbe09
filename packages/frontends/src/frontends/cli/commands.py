"""The command line: plan a model for any cluster, show and compare plans, train, verify.

An error of this project's packages is printed as one line, with exit code 1; wrong usage has exit
code 2. Commands import JAX or PyTorch only if they need it, after their arguments are checked.
"""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from autoshard import AutoshardError
from costmodel import CostmodelError
from crossmesh import CrossmeshError
from pipesched import PipeschedError
from shardspec import ShardspecError
from shardspec.cli.shell import run_command
from stagecut import StagecutError

from frontends.answer.plan import Plan
from frontends.cli.demo.display import Display, make_console
from frontends.cli.demo.text import read_text, standard_library
from frontends.cli.plan_arguments import PlanArguments, takes_plan_arguments
from frontends.cli.watch import SearchDisplay
from frontends.errors import FrontendsError, OutputError
from frontends.report.diff import diff, difference_tables
from frontends.report.html import write_comparison, write_page
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
"""By optional package that a command may need, what to install for it."""

_PAUSE_S = 5.0
"""Seconds between two lines about a search if nobody looks at a terminal [chosen]."""

Steps = Annotated[int, typer.Option(min=1, help="Training steps.")]
LearningRate = Annotated[float, typer.Option(min=0.0, help="Peak learning rate of AdamW.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the weights and of the pieces of text.")]
Page = Annotated[
    Path | None, typer.Option("--html", help="Write the plan as an HTML page to this file.")
]
Picture = Annotated[Path | None, typer.Option(help="Draw the plan to this file, .png or .svg.")]
SavedPlan = Annotated[Path, typer.Argument(metavar="PLAN.json", help="A saved plan.")]


def _print_version(asked: bool) -> None:
    if asked:
        print(f"meshwright {version('meshwright-frontends')}")
        raise typer.Exit


@app.callback()
def everywhere(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and end."
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


@app.command()
@takes_plan_arguments
def plan(
    options: PlanArguments,
    save: Annotated[Path | None, typer.Option(help="Write the plan to this JSON file.")] = None,
    html: Page = None,
    picture: Picture = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Show the search: what is tried, the best so far, the bound."),
    ] = False,
) -> None:
    """Plan a model for any cluster, real or imagined, and print the plan."""
    _check_outputs(save, html, picture)
    cluster, subject = options.where(), options.subject()
    how = options.how()
    beside = make_console(stderr=True)  # so that the output is the plan, and can be a file
    if watch:
        with SearchDisplay(beside) as watched:
            how = replace(how, progress=watched.progress, on_plan=watched.on_plan)
            planned = subject.plan(cluster, how)
    else:
        with Display(beside, _PAUSE_S) as display:
            planned = subject.plan(cluster, replace(how, progress=display))
    make_console().print(plan_tables(planned))
    if save is not None:
        planned.save(save)
    _write(planned, html, picture)


@app.command()
def show(
    path: SavedPlan,
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Explain the layouts and the stage of an operator or a value."
        ),
    ] = None,
    html: Page = None,
    picture: Picture = None,
    timeline: Annotated[
        Path | None, typer.Option(help="Draw the pipeline to this file, .png or .svg.")
    ] = None,
) -> None:
    """Print a saved plan, explain a part of it, or draw it."""
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
    after: Annotated[Path, typer.Argument(metavar="AFTER.json", help="Another saved plan.")],
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write both plans, side by side, as a page to this file."),
    ] = None,
) -> None:
    """Print the differences between two saved plans, and between their times."""
    difference = diff(Plan.load(before), Plan.load(after))
    if html is not None:
        write_comparison(difference, html)
    make_console().print(difference_tables(difference))


@app.command()
@takes_plan_arguments
def train(
    options: PlanArguments,
    data: Annotated[
        Path | None,
        typer.Option(
            help="File or folder of text to train on; Python's standard library if not set."
        ),
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
        int,
        typer.Option(min=0, help="Steps to run on a single device, too, and compare the losses."),
    ] = 10,
    checkpoints: Annotated[
        Path | None,
        typer.Option(help="Folder for checkpoints; training resumes from its last one, if any."),
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 50,
    elastic: Annotated[
        bool,
        typer.Option(
            "--elastic",
            help="Plan for as many devices as a launcher has started processes, so that a run that "
            "lost some goes on with those that are left; needs --checkpoints.",
        ),
    ] = False,
    validate_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Steps between losses on the last tenth of the text, which is then not trained "
            "on. By default, all of it is trained on.",
        ),
    ] = None,
) -> None:
    """Plan a byte-level GPT, train it on virtual devices, and verify the run."""
    saved = None if plan is None else Plan.load(plan)
    if elastic:
        _check_elastic(options, checkpoints, saved)
    job = options.job(steps=steps, learning_rate=learning_rate, seed=seed, plan=saved)
    from frontends.cli.demo.train import Checkpoints, for_processes
    from frontends.cli.demo.train import train as run
    from frontends.models.gpt import VOCABULARY

    if job.config.vocabulary < VOCABULARY:
        raise typer.BadParameter(
            f"a model that learns text byte by byte needs a vocabulary of {VOCABULARY} tokens; "
            f"{options.model} has {job.config.vocabulary}"
        )
    if elastic:
        job = for_processes(job)
    text = standard_library() if data is None else read_text(data)
    kept = None if checkpoints is None else Checkpoints(checkpoints, checkpoint_every)
    run(job, text, output, verify_steps, make_console(), kept, validate_every)


def _check_elastic(options: PlanArguments, checkpoints: Path | None, plan: Plan | None) -> None:
    """Raise `BadParameter` unless a run can be planned for the processes that there are."""
    if checkpoints is None:
        raise typer.BadParameter(
            "--elastic goes on from a run's last checkpoint; say where they are with --checkpoints"
        )
    fixed = [name for name in ("devices", "hosts") if getattr(options, name) is not None]
    if plan is not None or fixed:
        raise typer.BadParameter(
            "--elastic plans for the processes that there are; leave out "
            f"{', '.join(f'--{name}' for name in fixed or ['plan'])}"
        )


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Folder for the pages of the plans.")] = Path(
        "meshwright-demo"
    ),
    show: Annotated[bool, typer.Option("--open", help="Open the first page in a browser.")] = False,
) -> None:
    """Plan three known models for three clusters, in seconds; nothing is trained."""
    from frontends.cli.demo.tour import tour

    pages = tour(output, make_console())
    if show:
        webbrowser.open(pages[0].resolve().as_uri())


@app.command()
def verify(path: SavedPlan) -> None:
    """Check that the parts of a saved plan fit together and keep its limits.

    To check that the plan computes what one device does, and that its programs have the
    collectives of the plan, use train --plan.
    """
    print(Plan.load(path).verify())


@app.command()
def doctor(
    deadline: Annotated[
        float, typer.Option(min=1.0, metavar="SECONDS", help="Longest wait for a library.")
    ] = 120.0,
) -> None:
    """Show what is installed, which devices are seen, and what will work here.

    JAX, PyTorch and MPI are asked in processes of their own, which end by the deadline. The exit
    code is 1 if neither JAX steps nor PyTorch steps can be planned and run.
    """
    from frontends.cli.doctor.examine import examine

    text, is_usable = examine(deadline)
    print(text)
    if not is_usable:
        raise typer.Exit(1)


def main(arguments: Sequence[str] | None = None, name: str = "meshwright") -> None:
    """Run the command line and end the process.

    Args:
        arguments: The arguments; by default those of the process.
        name: What the help calls the command.
    """

    def run() -> None:
        try:
            app(args=arguments, prog_name=name)
        except ModuleNotFoundError as error:
            if error.name not in _INSTALLED_BY:
                raise
            how = _INSTALLED_BY[error.name]
            raise OutputError(f"this command needs {error.name}: pip install {how}") from error

    errors = (
        FrontendsError,
        AutoshardError,
        CostmodelError,
        CrossmeshError,
        PipeschedError,
        ShardspecError,
        StagecutError,
    )
    sys.exit(run_command(run, *errors, text="a plan is JSON text"))


def _check_outputs(save: Path | None, html: Path | None, picture: Path | None) -> None:
    """Check that files can be written, before a search that may take minutes."""
    for path in (save, html, picture):
        if path is not None and not path.parent.is_dir():
            raise OutputError(
                f"a plan is written to a file in an existing folder; {path}: there is no folder "
                f"{path.parent}"
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
