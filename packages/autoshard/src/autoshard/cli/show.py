"""The command `show`: prints what is in a file."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from shardspec.amounts import columns

from autoshard.base.record import KEY
from autoshard.cli.arguments import add_command
from autoshard.cli.shard import add_show_options, refuse_show_options, shown
from autoshard.problem.evaluate import evaluate
from autoshard.problem.full_times import Live
from autoshard.problem.problem import Problem
from autoshard.problem.solution import Incumbent
from autoshard.solvers.progress import describe, number
from autoshard.solvers.solution_json import solution_from_json

_EXAMPLES = """\
  python -m autoshard show asplos-2025-iopddl-B.json.gz
  python -m autoshard show problem.json --solution solution.json
  python -m autoshard show sharding.json --explain w1"""

_HEAD_BYTES = 64
"""The first bytes of the JSON of a graph or sharding, which contain the key for its kind."""


def add_show(commands: Any) -> None:
    """Add the command to argparse's subparsers."""
    show = add_command(
        commands,
        "show",
        _show,
        what="show what is in a file",
        more="Prints size, strategies and memory of a problem, and checks a solution of it;\n"
        "or prints a graph or a sharding.",
        examples=_EXAMPLES,
    )
    show.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="IOPDDL JSON, gzipped or not, or a graph's text, or JSON of autoshard",
    )
    show.add_argument(
        "--solution", type=Path, metavar="FILE", help="for a problem: file written by solve --out"
    )
    add_show_options(show)


def _show(options: argparse.Namespace) -> int:
    # A problem may have hundreds of megabytes, so the first bytes tell whether to parse the file.
    with options.file.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    ours = f'"{KEY}"'.encode() in head or head.lstrip().startswith(b"phases:")
    text = shown(options.file.read_text(encoding="utf-8"), options) if ours else None
    if text is not None:
        print(text)
        return 0
    refuse_show_options(options, "a problem")
    problem = Problem.from_file(options.file)
    sizes = [len(cost) for cost in problem.node_costs]
    forbidden = sum(not math.isfinite(cost) for costs in problem.node_costs for cost in costs)
    pairs = sum(table.size for table in problem.edge_costs)
    lines = [
        ("nodes", number(problem.n_nodes)),
        ("strategies", f"{number(sum(sizes))}, at most {max(sizes, default=0)} a node"),
        ("edges", f"{number(len(problem.edges))}, with {number(pairs)} costs"),
        ("forbidden strategies", number(forbidden)),
        *_memory(problem),
    ]
    if options.solution is not None:
        solution = solution_from_json(options.solution.read_text(encoding="utf-8"))
        judged = evaluate(problem, solution.choice)
        within = "feasible" if judged.feasible else "not feasible"
        lines += [
            ("solution", f"{within}, by {solution.method} in {solution.seconds:.1f} s"),
            ("cost and bound", describe(Incumbent(0.0, judged.cost, solution.lower_bound))),
            ("peak usage", number(judged.peak_usage)),
        ]
    for line in columns(lines):
        print(line)
    return 0


def _memory(problem: Problem) -> list[tuple[str, str]]:
    """Lines on the limit, the range of peak usages, and the times at which the limit can bind."""
    if problem.usage_limit is None:
        return [("usage limit", "none")]
    live = Live(problem)
    least = live.used([int(usage.argmin()) for usage in problem.usages]).max(initial=0.0)
    most = live.used([int(usage.argmax()) for usage in problem.usages]).max(initial=0.0)
    between = f"{number(least)} if each node uses its least, {number(most)} if its most"
    return [
        ("usage limit", number(problem.usage_limit)),
        ("peak usage", between),
        ("times that can bind", number(len(live.times))),
    ]
