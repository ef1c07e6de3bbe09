"""The command line: plan a known model on a known cluster, show a plan, reproduce the ablation.

What can go wrong on purpose ends as one line and exit code 1, wrong usage as exit code 2.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from costmodel import Cluster, presets
from costmodel.errors import CostmodelError

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
"""A million is a slip of the finger, and would take hours."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    options = _parser().parse_args(argv)
    try:
        if getattr(options, "picture", None) is not None:
            check_picture(options.picture)
        options.run(options)
        if sys.stdout is not None:  # it is where nobody has it, as after `>&-`
            sys.stdout.flush()
        return 0
    except BrokenPipeError:  # who read this has seen enough, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at its end
        return 0
    except UnicodeDecodeError as error:
        return _fail(f"a plan is JSON text; got {error}")
    except (StagecutError, CostmodelError, OSError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        _fail("interrupted")
        return 130


def _fail(message: str) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return 1


def _demo(options: argparse.Namespace) -> None:
    cluster = Cluster.preset(options.cluster)
    if cluster.n_devices > _MOST_DEVICES:
        raise InvalidInputError(
            f"the demo plans for at most {_MOST_DEVICES:,} devices; got {cluster.n_devices:,} in "
            f"{cluster.name}; for more, call plan_stages"
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
        parts.append(plan.draw(ascii=not _shows("░▓█")))
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


def _shows(text: str) -> bool:
    """Whether standard output can show it."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog="python -m stagecut",
        description="Cut a model into pipeline stages, and a cluster into their submeshes.",
        epilog=_EXAMPLES,
        formatter_class=raw,
    )
    parser.add_argument("--version", action="version", version=f"stagecut {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    command = commands.add_parser(
        "demo",
        help="plan a model of Alpa's tables on a cluster",
        description="Plan a model on a cluster by formulas: nothing runs, and no device is needed.",
        epilog=f"models: {', '.join(model_names())}\n\n"
        f"clusters, each with :N for N hosts: {', '.join(presets())}\n{_EXAMPLES}",
        formatter_class=raw,
    )
    command.add_argument("model", metavar="MODEL", help="such as gpt-39b; see below")
    command.add_argument(
        "--cluster", required=True, metavar="NAME", help="such as p3.16xlarge:8; see below"
    )
    command.add_argument(
        "--layers",
        type=_count,
        metavar="N",
        help="into which the operators are joined (default: as many as the model has blocks)",
    )
    command.add_argument(
        "--microbatches",
        type=_counts,
        metavar="N,N",
        help="of a step; of several numbers the best one (default: what Alpa used)",
    )
    command.add_argument(
        "--schedule",
        choices=SCHEDULES,
        default="1f1b",
        metavar="NAME",
        help=f"{', '.join(SCHEDULES)} (default: 1f1b)",
    )
    command.add_argument(
        "--memory",
        type=_gib,
        metavar="GIB",
        help="of a device (default: all that the cluster's devices have)",
    )
    command.add_argument(
        "--alternatives",
        action="store_true",
        help="compare with the best for every other number of stages, too; takes longer",
    )
    _add_work(command)
    _add_output(command)
    command.set_defaults(run=_demo)

    command = commands.add_parser(
        "show", help="show a plan", description="Show a plan that demo --json has written."
    )
    command.add_argument("plan", metavar="FILE", help="what demo --json printed")
    _add_output(command)
    command.set_defaults(run=_show)

    command = commands.add_parser(
        "ablation",
        help="compare the search with equal operators and equal layers",
        description="Alpa's ablation of section 8.3, in simulation: the search, and the search "
        "without its clustering of operators, and without stages of different numbers of layers.",
    )
    _add_work(command)
    command.add_argument("--picture", metavar="FILE", help="a .png or .svg")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=_ablation)
    return parser


def _add_work(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--processes",
        type=_count,
        default=1,
        metavar="N",
        help="that share the work (default: 1); the result is the same",
    )
    command.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="show how far it is (default: on a terminal)",
    )


def _add_output(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--explain", type=_index, metavar="STAGE", help="why a stage is as it is; counted from 0"
    )
    command.add_argument("--draw", action="store_true", help="draw the timeline and the memory")
    command.add_argument("--picture", metavar="FILE", help="a .png or .svg of both")
    command.add_argument("--json", action="store_true", help="print the plan as JSON, only")


def _index(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"it is a whole number from 0 on; got {text!r}")
    return int(text)


def _count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text, re.ASCII) or not int(text):
        raise argparse.ArgumentTypeError(f"it is a whole number from 1 on; got {text!r}")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(_count, text.split(",")))


def _gib(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text, re.ASCII) or not float(text):
        raise argparse.ArgumentTypeError(f"memory is a number of GiB, such as 15.5; got {text!r}")
    return int(float(text) * 2**30)
