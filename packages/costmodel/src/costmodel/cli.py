"""The command line: measure this machine, show a profile.

Every expected error is one line on standard error with exit code 1; wrong usage has exit code 2.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from shardspec.amounts import bytes_of
from shardspec.cli.arguments import seconds
from shardspec.cli.shell import Parser, run_command
from shardspec.errors import AmountError

from costmodel.calibrate.backend import NAMES
from costmodel.calibrate.launch import is_inside, is_started_by_us, rank
from costmodel.calibrate.measure import SIZES, Progress
from costmodel.calibrate.probe import ProbeJob, probe
from costmodel.calibrate.run import CalibrationJob, calibrate
from costmodel.calibrate.waiting import fail
from costmodel.errors import CostmodelError, OtherMachineWarning, shown
from costmodel.measured.machine import n_cores
from costmodel.profile import Profile
from costmodel.report.table import table

_MOST_A_CORE = 16  # processes; more would wait for each other, and each loads a framework
_BAR = 30


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    options = _parser().parse_args(argv)
    return run_command(
        lambda: _COMMANDS[options.command](options, argv),
        CostmodelError,
        text="a profile is JSON text",
    )


def _calibrate(options: argparse.Namespace, argv: Sequence[str]) -> int:
    job = CalibrationJob(
        options.backend,
        options.n_processes,
        tuple(options.sizes),
        options.time_s,
        options.deadline_s,
        options.out,
    )
    see = f"see it with: python -m costmodel show {job.out}"
    return _done(options, argv, see, lambda command: calibrate(job, command, _Bar()))


def _probe(options: argparse.Namespace, argv: Sequence[str]) -> int:
    job = ProbeJob(
        options.backend, options.n_processes, options.name, options.deadline_s, options.out
    )
    see = f"plan for it with: meshwright plan --cluster {job.out}"
    return _done(options, argv, see, lambda command: probe(job, command, _Bar()))


def _done(
    options: argparse.Namespace,
    argv: Sequence[str],
    see: str,
    do: Callable[[Sequence[str]], None],
) -> int:
    """Do a job of ranks, as one of them or in new ones, and say where the result is.

    After any error of a rank, the others must not wait for it.
    """
    command = ("-m", "costmodel", *argv)
    if not is_inside(options.backend):
        do(command)
    else:
        try:
            do(command)
        except Exception as error:
            is_expected = isinstance(error, CostmodelError | OSError)
            text = next(iter(str(error).strip().splitlines()), "")
            fail(f"rank failed: {text if is_expected else f'{type(error).__name__}: {text}'}")
    if not is_started_by_us() and rank(options.backend) == 0:
        print(f"wrote {options.out}; {see}")
    return 0


def _show(options: argparse.Namespace, argv: Sequence[str]) -> int:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OtherMachineWarning)
        profile = Profile.load(options.profile)
    for warning in caught:
        print(f"warning: {warning.message}", file=sys.stderr)
    print(table(profile), flush=True)
    if options.plot is not None:
        from costmodel.report.plot import plot

        plot(profile, options.plot)
        print(f"wrote {options.plot}")
    return 0


_COMMANDS = {"calibrate": _calibrate, "probe": _probe, "show": _show}


class _Bar:
    """Progress on stderr: a bar on a terminal, otherwise a line for every tenth."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._shown = -1

    def __call__(self, progress: Progress) -> None:
        part = progress.done / progress.total
        left = ""
        if 0 < part < 1:
            left = f", {(time.monotonic() - self._start) * (1 / part - 1):.0f} s left"
        text = f"{progress.done}/{progress.total}{left}: {progress.doing}"
        if sys.stderr.isatty():
            full = round(_BAR * part)
            line = f"[{'#' * full}{'.' * (_BAR - full)}] {text}"
            end = "\n" if part == 1 else ""
            print(f"\r\033[K{line[:100]}", end=end, file=sys.stderr, flush=True)
        elif (tenth := math.floor(10 * part)) > self._shown:
            self._shown = tenth
            print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m costmodel",
        description="Measure collectives and computation on this machine, and show the result.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    measure = commands.add_parser(
        "calibrate",
        help="measure collectives and matrix products and write a profile",
        description="Starts its own processes; under torchrun or mpiexec, joins theirs.",
    )
    measure.add_argument(
        "--backend", choices=NAMES, required=True, help="library whose collectives are measured"
    )
    measure.add_argument(
        "--sizes",
        type=_size,
        nargs="+",
        default=SIZES,
        metavar="BYTES",
        help="bytes of the collectives, such as 4KiB (default: powers of two, 256 B to 16 MiB)",
    )
    measure.add_argument(
        "--time-s",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="approximate time for all measurements (default: %(default)g)",
    )
    _add_ranks(measure, "number of processes, or of virtual devices of jax", "profile")
    machines = commands.add_parser(
        "probe",
        help="describe hosts, devices and links as a cluster that is planned for",
        description="Asks the processes of torchrun or mpiexec, each of which is a device: what "
        "their hosts, devices and links are. Unlike hosts are found. Without a launcher, it starts "
        "its own processes on this machine.",
    )
    machines.add_argument(
        "--backend", choices=("torch", "mpi"), required=True, help="library that sends messages"
    )
    machines.add_argument("--name", default="ours", help="name of the cluster (%(default)s)")
    _add_ranks(machines, "number of processes", "cluster")
    show = commands.add_parser(
        "show",
        help="print the fits of a profile and their errors",
        description="Prints the fits of a profile, and how well they agree with its points.",
    )
    show.add_argument("profile", type=Path, metavar="FILE", help="a profile from calibrate")
    show.add_argument(
        "--plot", type=Path, metavar="PICTURE", help="also draw points and fits to a .png or .svg"
    )
    return parser


def _add_ranks(to: argparse.ArgumentParser, number: str, result: str) -> None:
    """Add what commands have that ranks do together."""
    to.add_argument(
        "--n-processes",
        type=_count,
        default=max(2, n_cores()),
        help=f"{number}, without a launcher: at least 2, at most {_MOST_A_CORE} for each core "
        "(default: number of cores, %(default)s)",
    )
    to.add_argument(
        "--out",
        type=Path,
        default=Path(f"{result}.json"),
        metavar="FILE",
        help=f"file for the {result} (default: %(default)s)",
    )
    to.add_argument(
        "--deadline-s",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="limit for each step; a rank that waits longer for others ends the run "
        "(default: %(default)g)",
    )


def _count(text: str) -> int:
    most = _MOST_A_CORE * n_cores()
    if not (re.fullmatch("[0-9]{1,9}", text) and 2 <= int(text) <= most):
        raise argparse.ArgumentTypeError(
            f"collectives need 2 or more, and {n_cores()} cores run at most {most}; "
            f"got {shown(text)}"
        )
    return int(text)


def _size(text: str) -> int:
    try:
        size = bytes_of(text)
    except AmountError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if size < 1:
        raise argparse.ArgumentTypeError(f"a size is 1 byte or more; got {shown(text)}")
    return size
