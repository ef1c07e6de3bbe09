"""The command `solve`: finds the cheapest choice for the problem in an IOPDDL file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from shardspec.cli.arguments import natural, positive, seconds

from autoshard.cli.arguments import add_command, new_file
from autoshard.problem.problem import Problem
from autoshard.problem.solution import Incumbent
from autoshard.solvers.progress import ProgressLine, describe
from autoshard.solvers.solution_json import solution_from_json, solution_to_json
from autoshard.solvers.solve import METHODS, solve

_EXAMPLES = """\
  python -m autoshard solve asplos-2025-iopddl-B.json.gz --time 60
  python -m autoshard solve problem.json --method ilp --out solution.json
  python -m autoshard solve problem.json --start solution.json --seed 1"""


def add_solve(commands: Any) -> None:
    """Add the command to argparse's subparsers."""
    one = add_command(
        commands,
        "solve",
        _solve,
        what="find the cheapest choice for the problem in an IOPDDL file",
        more="Finds the cheapest strategy of each node within the usage limit, and a lower bound.",
        examples=_EXAMPLES,
    )
    names = ", ".join(METHODS)
    add = one.add_argument
    add("file", type=Path, metavar="FILE", help="IOPDDL JSON, gzipped or not")
    help_method = f"one of {names} (auto)"
    add("--method", choices=METHODS, default="auto", metavar="METHOD", help=help_method)
    add("--time", type=seconds, default=60.0, metavar="SECONDS", help="time limit (%(default)g)")
    help_steps = "limit of steps; the answer is the same on every machine if time does not end it"
    add("--steps", type=positive, help=help_steps)
    add("--seed", type=natural, default=0, help="seed of random numbers (%(default)s)")
    add("--start", type=Path, metavar="FILE", help="a solution to begin with")
    add("--out", type=new_file, metavar="FILE", help="write the solution to a file, as JSON")
    progress = one.add_mutually_exclusive_group()
    progress.add_argument(
        "--progress",
        action="store_true",
        default=None,
        help="show the best cost and the bound, even without a terminal",
    )
    progress.add_argument(
        "--no-progress", action="store_false", dest="progress", help="show no progress"
    )


def _solve(options: argparse.Namespace) -> int:
    problem = Problem.from_file(options.file)
    start = None
    if options.start is not None:
        start = solution_from_json(options.start.read_text(encoding="utf-8")).choice
    with ProgressLine(f"{options.file.name}, {options.method}", options.progress) as progress:
        solution = solve(
            problem,
            options.method,
            options.time,
            steps=options.steps,
            seed=options.seed,
            start=start,
            progress=progress,
        )
    known = Incumbent(solution.seconds, solution.objective, solution.lower_bound)
    print(f"{describe(known)}, {solution.method}, {solution.seconds:.1f} s")
    if options.out is not None:
        options.out.write_text(solution_to_json(solution, peak_bytes=_peak_bytes()))
        print(f"wrote {options.out}")
    return 0


def _peak_bytes() -> int | None:
    """The peak memory of this process so far; `None` if the system does not report it."""
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
