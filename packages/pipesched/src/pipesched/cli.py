"""The command line: draw, compare and check pipeline schedules.

Nothing is run and no device is needed. An error of this package is printed as one sentence, with
exit code 1; wrong usage has exit code 2.
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from pipesched.base.placement import Placement
from pipesched.errors import ArgumentError, ParseError, PipeschedError
from pipesched.generators.entry import ScheduleEntry
from pipesched.generators.schedules import (
    NAMES,
    is_schedule,
    make,
    schedule_entry,
    schedule_names,
)
from pipesched.judge.check import Semantics, check
from pipesched.report.draw import draw, legend
from pipesched.report.plot import plot
from pipesched.report.plot_memory import plot_memory
from pipesched.report.trace import to_trace
from pipesched.schedule.costs import Costs
from pipesched.schedule.csv import from_torch_csv, to_torch_csv
from pipesched.schedule.schedule import Schedule
from pipesched.simulation.compare import compare
from pipesched.simulation.delay import delay_weight_gradients
from pipesched.simulation.simulate import simulate
from pipesched.simulation.timeline import Timeline
from pipesched.solver.search import search

_DELAY = "+delay"

_DESCRIPTION = """\
Draw, compare and check pipeline schedules, simulated with the times that you pass.

schedules:
  {names};
  search: the best schedule that a search finds for these times, with a bound on how far from the
  best it can be;
  any of these followed by {delay}, as eager-1f1b{delay}: weight gradients are delayed to hide
  transfers; or a file with a schedule: the output of str(), JSON, or torch's CSV"""

_EXAMPLES = """\
examples:
  python -m pipesched show eager-1f1b --stages 4 --microbatches 8 --comm 0.5
  python -m pipesched compare 1f1b eager-1f1b zb-auto search --stages 4 --microbatches 8 \\
      --comm 0.5 --plot timelines.png --memory memory.png --cap 7
  python -m pipesched compare 1f1b interleaved-1f1b zb-v --ranks 4 --microbatches 8
  python -m pipesched show zb-v --ranks 4 --microbatches 8 --save zb_v.csv
  python -m pipesched check zb_v.csv"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code."""
    options = _parser().parse_args(argv)
    try:
        _print(options.run(options))
    except BrokenPipeError:  # the reader has closed the pipe, as `| head` does
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        return 0
    except (PipeschedError, OSError) as error:
        print(f"python -m pipesched {options.command}: {error}", file=sys.stderr)
        return 1
    return 0


def _print(text: str) -> None:
    """Print a text, with ? for characters that the encoding of standard output does not have."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), flush=True)


def _show(options: argparse.Namespace) -> str:
    timeline, notes = _timeline(options.schedule, options)
    _write_files([timeline], options)
    if options.save:
        _save(timeline.schedule, Path(options.save))
    return "\n".join([draw(timeline, options.width), legend(timeline), *notes])


def _compare(options: argparse.Namespace) -> str:
    simulated = [_timeline(name, options) for name in options.schedules]
    timelines = [timeline for timeline, _ in simulated]
    notes = dict.fromkeys(note for _, of_one in simulated for note in of_one)
    span_s = max(timeline.makespan_s for timeline in timelines)
    _write_files(timelines, options)
    drawings = [f"{draw(timeline, options.width, span_s)}\n" for timeline in timelines]
    about_memory = "peak memory: of the rank that holds most, in microbatches of all its stages"
    return "\n".join([compare(*timelines), about_memory, *notes, "", *drawings, legend(*timelines)])


def _check(options: argparse.Namespace) -> str:
    schedule = _read(Path(options.file))
    check(schedule, semantics=options.semantics)
    return (
        f"{schedule.name} is right: {schedule.n_stages} stages on {len(schedule.ranks)} ranks, "
        f"{schedule.n_microbatches} microbatches, {sum(map(len, schedule.ranks))} actions, "
        f"with {options.semantics} transfers"
    )


def _timeline(name: str, options: argparse.Namespace) -> tuple[Timeline, list[str]]:
    """The timeline of the schedule that a name or file stands for, and notes to print with it."""
    base = name.removesuffix(_DELAY)
    entry: ScheduleEntry | None = None
    if base != "search" and not is_schedule(base):
        if not Path(base).exists():
            raise ArgumentError(
                f"a schedule is one of {', '.join(schedule_names())}, search, any of them with "
                f"{_DELAY}, or a file; got {name}"
            )
        schedule = _read(Path(base))
        route = schedule.placement.routes[0]
        n_chunks = max(map(route.count, route))
    else:
        if options.microbatches is None or (options.stages is None) is (options.ranks is None):
            raise ArgumentError(
                f"{name} needs --microbatches, and either --stages or --ranks; got "
                f"--stages {options.stages}, --ranks {options.ranks} and "
                f"--microbatches {options.microbatches}"
            )
        n_chunks = 1
        if base != "search":
            entry = schedule_entry(base)
            is_chosen = "n_chunks" in entry.options
            n_chunks = options.chunks if is_chosen else entry.stages_a_rank
        if n_chunks < 1:
            raise ArgumentError(f"a rank has at least one stage; got --chunks {n_chunks}")
        schedule = None
    # With --ranks, the stages of the same model are smaller the more of them a rank has.
    costs = _costs(options, n_chunks if options.ranks is not None else 1)
    costs = replace(costs, activation_bytes=1.0 / n_chunks)
    notes = []
    if schedule is None:
        n_stages = options.ranks * n_chunks if options.stages is None else options.stages
        if entry is None:
            best = search(
                n_stages,
                options.microbatches,
                costs,
                activation_cap=options.cap,
                placement=Placement.linear(n_stages),
                split_backward=options.split,
            )
            schedule = best.schedule
            notes = [
                "search: no schedule with one stage on each rank and "
                f"{'split' if options.split else 'whole'} backwards takes less than "
                f"{best.lower_bound_s:.4g} s (gap {best.gap:.1%})"
            ]
        else:
            values = {"n_chunks": n_chunks, "costs": costs, "activation_cap": options.cap}
            known: dict[str, Any] = {k: values[k] for k in entry.options if k in values}
            schedule = make(base, n_stages, options.microbatches, **known)
    if name.endswith(_DELAY):
        schedule = replace(delay_weight_gradients(schedule, costs), name=name)
    return simulate(schedule, costs), notes


def _costs(options: argparse.Namespace, parts: int) -> Costs:
    """The costs of a stage that is one of `parts` equal parts of what the options describe."""
    times = (options.backward, options.input_gradient, options.weight_gradient)
    backward, *halves = (None if seconds is None else seconds / parts for seconds in times)
    if backward is None and None in halves:
        backward = 2.0 / parts
    return Costs(
        options.forward / parts,
        backward,
        input_gradient_s=halves[0],
        weight_gradient_s=halves[1],
        transfer_s=options.comm,
        latency_s=options.latency,
        overlap=not options.no_overlap,
    )


def _write_files(timelines: list[Timeline], options: argparse.Namespace) -> None:
    if options.plot:
        plot(timelines, options.plot)
    if options.memory:
        plot_memory(timelines, options.memory, options.cap)
    if options.trace:
        Path(options.trace).write_text(to_trace(*timelines), encoding="utf-8")


def _save(schedule: Schedule, path: Path) -> None:
    write = {".json": Schedule.to_json, ".csv": to_torch_csv}.get(path.suffix.lower(), str)
    path.write_text(write(schedule).rstrip("\n") + "\n", encoding="utf-8")


def _read(path: Path) -> Schedule:
    try:
        text = path.read_text(encoding="utf-8-sig")  # with a byte order mark or without
    except UnicodeDecodeError as error:
        raise ParseError(f"the file of a schedule is UTF-8 text; got {path}: {error}") from error
    if text.lstrip().startswith("{"):
        return Schedule.from_json(text)
    if path.suffix.lower() == ".csv":
        return from_torch_csv(text, path.stem.replace(" ", "_"))
    return Schedule.parse(text)


def _parser() -> argparse.ArgumentParser:
    as_is = argparse.RawDescriptionHelpFormatter
    names = textwrap.fill(", ".join(schedule_names()), 95, break_on_hyphens=False)
    description = _DESCRIPTION.format(names=names.replace("\n", "\n  "), delay=_DELAY)
    parser = argparse.ArgumentParser(
        prog="python -m pipesched",
        description=description,
        epilog=_EXAMPLES,
        formatter_class=as_is,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    both = _shared()
    show = commands.add_parser(
        "show",
        parents=[both],
        help="draw the timeline of one schedule",
        description=description,
        epilog=_EXAMPLES,
        formatter_class=as_is,
    )
    show.add_argument("schedule", help="the name of a schedule, or a file, see above")
    show.add_argument(
        "--save",
        metavar="FILE",
        help="write the schedule to a file: .json, .csv for torch, or any other suffix for text",
    )
    show.set_defaults(run=_show)
    several = commands.add_parser(
        "compare",
        parents=[both],
        help="print a table of several schedules, and their timelines to the same scale",
        description=description,
        epilog=_EXAMPLES,
        formatter_class=as_is,
    )
    several.add_argument(
        "schedules", nargs="+", metavar="schedule", help="names of schedules, or files, see above"
    )
    several.set_defaults(run=_compare)
    judge = commands.add_parser("check", help="check whether the schedule in a file is right")
    judge.add_argument(
        "file", help="a file with the output of str() of a schedule, its JSON, or torch's CSV"
    )
    judge.add_argument(
        "--semantics",
        choices=get_args(Semantics),
        default="buffered",
        help="what sends and receives wait for (default: %(default)s)",
    )
    judge.set_defaults(run=_check)
    return parser


def _shared() -> argparse.ArgumentParser:
    chunked = [name for name in NAMES if "n_chunks" in schedule_entry(name).options]
    shared = argparse.ArgumentParser(add_help=False)
    sizes = shared.add_argument_group("sizes")
    sizes.add_argument(
        "--stages", type=int, help="number of stages of the model, each with the times below"
    )
    sizes.add_argument(
        "--ranks",
        type=int,
        help="number of ranks, instead of --stages: the model is cut into as many stages as the "
        "schedule has on these ranks, and the times below are for all stages of a rank together",
    )
    sizes.add_argument("--microbatches", type=int, help="number of microbatches")
    sizes.add_argument(
        "--chunks",
        type=int,
        default=2,
        help=f"stages on each rank, for {', '.join(chunked)} (default: %(default)s)",
    )
    times = shared.add_argument_group("times of one microbatch, in seconds")
    times.add_argument("--forward", type=float, default=1.0, help="forward (default: %(default)s)")
    times.add_argument(
        "--backward", type=float, help="whole backward (default: 2.0, half of it for each gradient)"
    )
    times.add_argument(
        "--input-gradient", type=float, help="the part of the backward for the input gradient"
    )
    times.add_argument(
        "--weight-gradient", type=float, help="the part of the backward for the weight gradient"
    )
    times.add_argument(
        "--comm",
        type=float,
        default=0.0,
        help="time for which a message occupies its link (default: %(default)s)",
    )
    times.add_argument(
        "--latency",
        type=float,
        default=0.0,
        help="time after that until the message arrives (default: %(default)s)",
    )
    times.add_argument(
        "--no-overlap", action="store_true", help="a rank does not compute while it sends"
    )
    limits = shared.add_argument_group("limits of search and zb-auto")
    limits.add_argument("--cap", type=float, help="the most microbatches that a rank may hold")
    limits.add_argument(
        "--split", action="store_true", help="search may split backwards into two gradients"
    )
    files = shared.add_argument_group("output")
    files.add_argument(
        "--width", type=int, default=96, help="columns of a drawing (default: %(default)s)"
    )
    files.add_argument("--plot", metavar="FILE", help="draw the timelines to a .png or .svg")
    files.add_argument("--memory", metavar="FILE", help="draw the memory to a .png or .svg")
    files.add_argument("--trace", metavar="FILE", help="write a JSON trace for ui.perfetto.dev")
    return shared
