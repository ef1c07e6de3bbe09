"""The command `bench`: runs methods on a folder of IOPDDL files and compares them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from shardspec.amounts import columns
from shardspec.cli.arguments import natural, seconds

from autoshard.cli.arguments import add_command
from autoshard.cli.benchmark import (
    HEAD,
    KNOWN,
    TIME_S,
    BenchmarkRow,
    bench,
    failures,
    instances,
    markdown,
    row,
    to_json,
)
from autoshard.cli.benchmark_picture import draw
from autoshard.errors import MissingExtraError
from autoshard.solvers.solve import METHODS

_EXAMPLES = f"""\
  python -m autoshard bench iopddl/ --methods auto ilp
  python -m autoshard bench iopddl/ --time 10 --out results/

{KNOWN} in the folder, or the file of --known, has the best cost and bound known of each instance,
by the part of the instance's file name after the last dash, and the time to give it:
{{"B": {{"best": 532843, "bound": 532843, "time_s": 60}}}}"""


def add_bench(commands: Any) -> None:
    """Add the command to argparse's subparsers."""
    many = add_command(
        commands,
        "bench",
        _bench,
        what="compare methods on a folder of IOPDDL files",
        more="Solves every file by every method, each in a separate process. Prints a table, and "
        "writes\nbench.json, bench.md and bench.png, which shows quality against time.",
        examples=_EXAMPLES,
    )
    names = ", ".join(METHODS)
    add = many.add_argument
    add("folder", type=Path, metavar="FOLDER", help="folder of .json or .json.gz files, or a file")
    add(
        "--methods",
        nargs="+",
        choices=METHODS,
        default=["auto"],
        metavar="METHOD",
        help=f"one or more of {names} (auto)",
    )
    add(
        "--time",
        type=seconds,
        metavar="SECONDS",
        help=f"time of each solve (as in the file of --known, else {TIME_S:g})",
    )
    add("--known", type=Path, metavar="FILE", help=f"best known results (FOLDER/{KNOWN})")
    add("--seed", type=natural, default=0, help="seed of random numbers (%(default)s)")
    add(
        "--out",
        type=Path,
        default=Path("iopddl-bench"),
        metavar="FOLDER",
        help="folder to write the results to (%(default)s)",
    )


def _bench(options: argparse.Namespace) -> int:
    listed = instances(options.folder, time_s=options.time, known=options.known)
    options.out.mkdir(parents=True, exist_ok=True)
    total = len(listed) * len(options.methods)
    results: list[BenchmarkRow] = []

    def keep(result: BenchmarkRow) -> None:
        results.append(result)
        cells = [cell for cell in row(result) if cell]
        print(f"{len(results)}/{total}: {', '.join(cells)}", file=sys.stderr, flush=True)
        # Written after each solve, so that results survive a crash or Ctrl-C.
        (options.out / "bench.json").write_text(to_json(results))
        (options.out / "bench.md").write_text(markdown(results))

    bench(listed, options.methods, seed=options.seed, progress=keep)
    for line in [*columns([HEAD, *map(row, results)]), *failures(results)]:
        print(line)
    try:
        draw(results, options.out / "bench.png")
    except MissingExtraError as error:
        print(f"warning: {error}", file=sys.stderr)
    print(f"wrote {options.out}/bench.*")
    return 0 if all(result.solution is not None for result in results) else 1
