"""The commands: plan a published model on a preset cluster, show a plan, reproduce the ablation.

An error of this package is printed as one line, with exit code 1; wrong usage has exit code 2.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from costmodel import Cluster, presets
from costmodel.errors import CostmodelError
from shardspec.cli.arguments import natural, positive
from shardspec.cli.shell import Parser, can_show, run_command

from stagecut import __version__
from stagecut.base.held_microbatches import SCHEDULES
from stagecut.base.progress import reporting
from stagecut.base.workers import workers
from stagecut.cli.ablation import CASES, ablation, bars, report
from stagecut.cli.ablation import to_json as ablation_json
from stagecut.cli.demo import demo
from stagecut.errors import InvalidInputError, StagecutError
from stagecut.models import model, model_names
from stagecut.plan.picture import check_picture, picture
from stagecut.plan.stage_plan import StagePlan

_EXAMPLES = """
examples:
  python -m stagecut demo gpt-39b --cluster p3.16xlarge:8
  python -m stagecut demo wide-resnet-2b --cluster p3.16xlarge --explain 0 --draw
  python -m stagecut demo moe-10b --cluster p3.16xlarge:2 --microbatches 16,32,64 --picture plan.svg
  python -m stagecut demo gpt-2.6b --cluster p3.16xlarge --json > plan.json
  python -m stagecut show plan.json --draw
  python -m stagecut ablation --picture ablation.svg"""

_MOST_DEVICES = 4096
"""A million devices are taken for a typing error: planning for them would take hours."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code."""
    options = _parser().parse_args(argv)

    def run() -> None:
        if getattr(options, "picture", None) is not None:
            check_picture(options.picture)
        options.run(options)

    return run_command(run, StagecutError, CostmodelError, text="a plan is JSON text")


def _demo(options: argparse.Namespace) -> None:
    cluster = Cluster.preset(options.cluster)
    if cluster.n_devices > _MOST_DEVICES:
        raise InvalidInputError(
            f"the demo plans for at most {_MOST_DEVICES:,} devices; got {cluster.n_devices:,} in "
            f"{cluster.name}; call plan_stages for more"
        )
    plan = demo(
        model(options.model),
        cluster,
        n_layers=options.layers,
        n_microbatches=options.microbatches,
        schedule=options.schedule,
        memory_bytes=options.memory,
        alternatives=options.alternatives,
        processes=options.processes,
        progress=_shows_progress(options),
    )
    _output(plan, options)


def _show(options: argparse.Namespace) -> None:
    _output(StagePlan.from_json(Path(options.plan).read_text(encoding="utf-8")), options)


def _output(plan: StagePlan, options: argparse.Namespace) -> None:
    if options.picture is not None:
        picture(plan, options.picture)
    if options.json:
        print(plan.to_json())
        return
    parts = [str(plan)]
    if options.explain is not None:
        parts.append(plan.explain(options.explain))
    if options.draw:
        parts.append(plan.draw(ascii=not can_show("░▓█")))
    print("\n\n".join(parts))


def _ablation(options: argparse.Namespace) -> None:
    results = []
    with (
        reporting(_shows_progress(options), "models planned") as tell,
        workers(ablation, options.processes) as call,
    ):
        for result in call([(case,) for case in CASES]):
            results.append(result)
            if tell is not None:
                tell(len(results), len(CASES))
    if options.picture is not None:
        bars(results, options.picture)
    print(ablation_json(results) if options.json else report(results))


def _shows_progress(options: argparse.Namespace) -> bool:
    return sys.stderr.isatty() if options.progress is None else bool(options.progress)


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(
        prog="python -m stagecut",
        description="Cut a model into pipeline stages, and the cluster into their submeshes.",
        epilog=_EXAMPLES,
        formatter_class=raw,
    )
    parser.add_argument("--version", action="version", version=f"stagecut {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    command = commands.add_parser(
        "demo",
        help="plan a model of Alpa's tables on a cluster",
        description="Plan a model on a cluster. Prices come from formulas: nothing runs, and no "
        "device is needed.",
        epilog=f"models: {', '.join(model_names())}\n\n"
        f"clusters, each with :N for N hosts: {', '.join(presets())}\n{_EXAMPLES}",
        formatter_class=raw,
    )
    command.add_argument(
        "model", metavar="MODEL", help="the model, such as gpt-39b; all names are listed below"
    )
    command.add_argument(
        "--cluster",
        required=True,
        metavar="NAME",
        help="the cluster, such as p3.16xlarge:8; all names are listed below",
    )
    command.add_argument(
        "--layers",
        type=positive,
        metavar="N",
        help="number of layers into which the operators are joined (default: the number of the "
        "model's blocks)",
    )
    command.add_argument(
        "--microbatches",
        type=_counts,
        metavar="N,N",
        help="microbatches of a step; of several numbers the best is taken (default: the number "
        "that Alpa used)",
    )
    command.add_argument(
        "--schedule",
        choices=SCHEDULES,
        default="1f1b",
        metavar="NAME",
        help=f"one of {', '.join(SCHEDULES)} (default: 1f1b)",
    )
    command.add_argument(
        "--memory",
        type=_gib,
        metavar="GIB",
        help="memory of a device (default: all that the cluster's devices have)",
    )
    command.add_argument(
        "--alternatives",
        action="store_true",
        help="also find the best plan for every other number of stages; this takes longer",
    )
    _add_work(command)
    _add_output(command)
    command.set_defaults(run=_demo)

    command = commands.add_parser(
        "show", help="show a saved plan", description="Show a plan that demo --json has printed."
    )
    command.add_argument("plan", metavar="FILE", help="a file with the output of demo --json")
    _add_output(command)
    command.set_defaults(run=_show)

    command = commands.add_parser(
        "ablation",
        help="compare the search with equal operators and equal layers",
        description="Reproduce the ablation of Alpa, section 8.3, in simulation: compare the "
        "search with layers of equally many operators, and with stages of equally many layers.",
    )
    _add_work(command)
    command.add_argument("--picture", metavar="FILE", help="draw the results to a .png or .svg")
    command.add_argument("--json", action="store_true", help="print the results as JSON")
    command.set_defaults(run=_ablation)
    return parser


def _add_work(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--processes",
        type=positive,
        default=1,
        metavar="N",
        help="processes that share the work (default: 1); the result is the same",
    )
    command.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="show the progress (default: only on a terminal)",
    )


def _add_output(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--explain",
        type=natural,
        metavar="STAGE",
        help="explain why this stage, counted from 0, was chosen",
    )
    command.add_argument("--draw", action="store_true", help="draw the timeline and the memory")
    command.add_argument("--picture", metavar="FILE", help="draw both to a .png or .svg")
    command.add_argument("--json", action="store_true", help="print only the plan, as JSON")


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(positive, text.split(",")))


def _gib(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text, re.ASCII) or not float(text):
        raise argparse.ArgumentTypeError(f"memory is a number of GiB, such as 15.5; got {text!r}")
    return int(float(text) * 2**30)
