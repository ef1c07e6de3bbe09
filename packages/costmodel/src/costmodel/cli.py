"""The command line: measure this machine, show a profile.

What can go wrong on purpose ends as one line and exit code 1, wrong usage as exit code 2.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from shardspec.amounts import bytes_of
from shardspec.errors import AmountError

from costmodel.calibrate.backend import NAMES
from costmodel.calibrate.launch import is_inside
from costmodel.calibrate.measure import SIZES, Progress
from costmodel.calibrate.run import CalibrationJob, calibrate
from costmodel.calibrate.waiting import fail
from costmodel.errors import CostmodelError, OtherMachineWarning, shown
from costmodel.measured.machine import n_cores
from costmodel.profile import Profile
from costmodel.report.table import table

_MOST_A_CORE = 16  # processes: more wait for each other, and each takes a framework's memory
_BAR = 30


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    options = _parser().parse_args(argv)
    try:
        if options.command == "calibrate":
            return _calibrate(options, argv)
        return _show(options)
    except BrokenPipeError:  # who read this has seen enough, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at its end
        return 0
    except (CostmodelError, OSError) as error:
        print(f"error: {_one_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130


def _calibrate(options: argparse.Namespace, argv: Sequence[str]) -> int:
    job = CalibrationJob(
        options.backend,
        options.n_processes,
        tuple(options.sizes),
        options.time_s,
        options.deadline_s,
        options.out,
    )
    command = ("-m", "costmodel", *argv)
    if not is_inside(options.backend):
        calibrate(job, command, _Bar())
        print(f"wrote {job.out}; see it with: python -m costmodel show {job.out}")
        return 0
    try:  # a rank: whatever goes wrong, the others must not wait for it
        calibrate(job, command, _Bar())
    except Exception as error:
        fail(f"rank failed: {_one_line(error)}")
    return 0


def _show(options: argparse.Namespace) -> int:
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


class _Bar:
    """Progress on stderr: a bar that is drawn over, or lines now and then where there is none."""

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
    parser = argparse.ArgumentParser(
        prog="python -m costmodel", description="Measure what this machine charges, and show it."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    measure = commands.add_parser(
        "calibrate",
        help="measure collectives and matrix products and write a profile",
        description="Starts its own processes, or joins those of a torchrun or mpiexec around it.",
    )
    measure.add_argument("--backend", choices=NAMES, required=True, help="what moves the bytes")
    measure.add_argument(
        "--n-processes",
        type=_count,
        default=max(2, n_cores()),
        help="processes, or virtual devices of jax: 2 or more, at most "
        f"{_MOST_A_CORE} for each core (the cores, %(default)s)",
    )
    measure.add_argument(
        "--sizes",
        type=_size,
        nargs="+",
        default=SIZES,
        metavar="BYTES",
        help="bytes of the collectives, such as 4KiB (powers of two from 256 B to 16 MiB)",
    )
    measure.add_argument(
        "--out",
        type=Path,
        default=Path("profile.json"),
        metavar="FILE",
        help="where the profile is written (%(default)s)",
    )
    measure.add_argument(
        "--time-s",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="for all measurements, about (%(default)g)",
    )
    measure.add_argument(
        "--deadline-s",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="for each step; a rank that waits longer for others ends (%(default)g)",
    )
    show = commands.add_parser(
        "show",
        help="print the fits of a profile against its points",
        description="Prints what was fitted to a profile's points, and how well it meets them.",
    )
    show.add_argument("profile", type=Path, metavar="FILE", help="what calibrate wrote")
    show.add_argument(
        "--plot", type=Path, metavar="PICTURE", help="draw points and fits to a .png or .svg, too"
    )
    return parser


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


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"a time is a number of seconds > 0; got {shown(text)}")
    return value


def _one_line(error: Exception) -> str:
    text = next(iter(str(error).strip().splitlines()), "")
    own = isinstance(error, CostmodelError | OSError)
    return text if own else f"{type(error).__name__}: {text}"
