"""The command line: solve an IOPDDL file, bench a folder of them, shard a graph, show a file.

What can go wrong on purpose ends as one line and exit code 1, wrong usage as exit code 2.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from autoshard.benchmark import (
    HEAD,
    KNOWN,
    TIME_S,
    Result,
    bench,
    failures,
    instances,
    markdown,
    row,
    to_json,
)
from autoshard.cli_shard import add_commands, add_show_options, shown
from autoshard.errors import AutoshardError, MissingExtraError
from autoshard.evaluate import evaluate
from autoshard.live import Live
from autoshard.problem import Problem
from autoshard.progress import Progress, describe, number
from autoshard.record import KEY
from autoshard.run import Incumbent
from autoshard.solution_json import solution_from_json, solution_to_json
from autoshard.solve import METHODS, solve

_EXAMPLES = {
    "solve": """
examples:
  python -m autoshard solve asplos-2025-iopddl-B.json.gz --time 60
  python -m autoshard solve problem.json --method ilp --out solution.json
  python -m autoshard solve problem.json --start solution.json --seed 1""",
    "bench": f"""
examples:
  python -m autoshard bench iopddl/ --methods auto ilp
  python -m autoshard bench iopddl/ --time 10 --out results/

{KNOWN} in the folder, or the file of --known, says what is known of each instance, by what its
name has behind the last dash: {{"B": {{"best": 532843, "bound": 532843, "time_s": 60}}}}""",
    "show": """
examples:
  python -m autoshard show asplos-2025-iopddl-B.json.gz
  python -m autoshard show problem.json --solution solution.json
  python -m autoshard show sharding.json --explain w1""",
}


_HEAD_BYTES = 64
"""Of a graph's or sharding's JSON, which hold the key that says what it is."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    options = _parser().parse_args(argv)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # who read this has seen enough, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at its end
        return 0
    except UnicodeDecodeError as error:
        print(f"error: a file is text, or gzipped text; got {error}", file=sys.stderr)
        return 1
    except (AutoshardError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130


def _solve(options: argparse.Namespace) -> int:
    problem = Problem.from_file(options.file)
    start = None
    if options.start is not None:
        start = solution_from_json(options.start.read_text()).choice
    with Progress(f"{options.file.name}, {options.method}", options.progress) as progress:
        found = solve(
            problem,
            options.method,
            options.time,
            steps=options.steps,
            seed=options.seed,
            start=start,
            progress=progress,
        )
    known = Incumbent(found.seconds, found.objective, found.lower_bound)
    print(f"{describe(known)}, {found.method}, {found.seconds:.1f} s")
    if options.out is not None:
        options.out.write_text(solution_to_json(found, peak_bytes=_peak_bytes()))
        print(f"wrote {options.out}")
    return 0


def _bench(options: argparse.Namespace) -> int:
    listed = instances(options.folder, time_s=options.time, known=options.known)
    options.out.mkdir(parents=True, exist_ok=True)
    total = len(listed) * len(options.methods)
    results: list[Result] = []

    def keep(result: Result) -> None:
        results.append(result)
        cells = [cell for cell in row(result) if cell]
        print(f"{len(results)}/{total}: {', '.join(cells)}", file=sys.stderr, flush=True)
        # What is done is kept, whatever happens to the rest.
        (options.out / "bench.json").write_text(to_json(results))
        (options.out / "bench.md").write_text(markdown(results))

    bench(listed, options.methods, seed=options.seed, progress=keep)
    for line in [*_aligned([HEAD, *map(row, results)]), *failures(results)]:
        print(line)
    try:
        from autoshard.benchmark_picture import draw

        draw(results, options.out / "bench.png")
    except MissingExtraError as error:
        print(f"warning: {error}", file=sys.stderr)
    print(f"wrote {options.out}/bench.*")
    return 0 if all(result.solution is not None for result in results) else 1


def _show(options: argparse.Namespace) -> int:
    # A problem may have hundreds of megabytes: only what says that it is ours is parsed for it.
    with options.file.open("rb") as file:
        ours = f'"{KEY}"'.encode() in file.read(_HEAD_BYTES)
    text = shown(options.file.read_text(encoding="utf-8"), options) if ours else None
    if text is not None:
        print(text)
        return 0
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
        found = solution_from_json(options.solution.read_text())
        judged = evaluate(problem, found.choice)
        within = "feasible" if judged.feasible else "not feasible"
        lines += [
            ("solution", f"{within}, by {found.method} in {found.seconds:.1f} s"),
            ("cost", number(judged.cost) if math.isfinite(judged.cost) else "forbidden"),
            ("lower bound", f"{number(found.lower_bound)}, gap {100 * found.gap:.3g} %"),
            ("peak usage", number(judged.peak_usage)),
        ]
    for line in _aligned(lines):
        print(line)
    return 0


def _memory(problem: Problem) -> list[tuple[str, str]]:
    """The limit, and between which peaks of usage it lies."""
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


def _peak_bytes() -> int | None:
    """Of this process, so far; `None` where the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m autoshard",
        description="Search how to run every operator of a program on a device mesh.",
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    def command(name: str, what: str, more: str) -> argparse.ArgumentParser:
        found = commands.add_parser(
            name,
            help=what,
            description=more,
            epilog=_EXAMPLES[name],
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        found.set_defaults(run={"solve": _solve, "bench": _bench, "show": _show}[name])
        return found

    names = ", ".join(METHODS)
    one = command(
        "solve",
        "find the cheapest choice of an IOPDDL file",
        "Finds the cheapest strategy for every node within the usage limit, with a lower bound.",
    )
    add = one.add_argument
    add("file", type=Path, metavar="FILE", help="IOPDDL JSON, gzipped or not")
    add("--method", choices=METHODS, default="auto", metavar="METHOD", help=f"of {names} (auto)")
    add("--time", type=_seconds, default=60.0, metavar="SECONDS", help="at most (%(default)g)")
    add("--steps", type=_count, help="at most; the same on every machine if time does not end it")
    add("--seed", type=_whole, default=0, help="of random numbers (%(default)s)")
    add("--start", type=Path, metavar="FILE", help="a solution to begin with")
    add("--out", type=Path, metavar="FILE", help="write the solution there, as JSON")
    progress = one.add_mutually_exclusive_group()
    progress.add_argument(
        "--progress",
        action="store_true",
        default=None,
        help="show incumbent and bound, also where there is no terminal",
    )
    progress.add_argument("--no-progress", action="store_false", dest="progress", help="do not")

    add_commands(commands)
    many = command(
        "bench",
        "compare methods on a folder of IOPDDL files",
        "Solves every file by every method, each in a process of its own, and prints the table; "
        "writes\nbench.json, bench.md and bench.png, quality against time.",
    )
    add = many.add_argument
    add("folder", type=Path, metavar="FOLDER", help="with .json or .json.gz files, or one of them")
    add(
        "--methods",
        nargs="+",
        choices=METHODS,
        default=["auto"],
        metavar="METHOD",
        help=f"of {names} (auto)",
    )
    add(
        "--time",
        type=_seconds,
        metavar="SECONDS",
        help=f"for each solve (that of the known facts, else {TIME_S:g})",
    )
    add("--known", type=Path, metavar="FILE", help=f"what is known (FOLDER/{KNOWN})")
    add("--seed", type=_whole, default=0, help="of random numbers (%(default)s)")
    add("--out", type=Path, default=Path("iopddl-bench"), metavar="FOLDER", help="%(default)s")

    show = command(
        "show",
        "say what is in a file",
        "Prints size, strategies and memory of a problem, and judges a solution of it; or what a\n"
        "graph or a sharding says.",
    )
    show.add_argument(
        "file", type=Path, metavar="FILE", help="IOPDDL JSON, gzipped or not, or JSON of autoshard"
    )
    show.add_argument(
        "--solution", type=Path, metavar="FILE", help="of a problem: what solve --out wrote"
    )
    add_show_options(show)
    return parser


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"a time is a number of seconds > 0; got {text!r}")
    return value


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise argparse.ArgumentTypeError(f"a seed is a whole number >= 0; got {text!r}")
    return int(text)


def _count(text: str) -> int:
    if _whole(text) < 1:
        raise argparse.ArgumentTypeError(f"there is at least one step; got {text!r}")
    return int(text)
