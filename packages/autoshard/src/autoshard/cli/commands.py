"""The command line: solve an IOPDDL file, shard a graph, bench a folder of files, show a file.

Errors that this package raises are printed in one line, with exit code 1; wrong usage has exit code
2.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from shardspec.cli.shell import Parser, run_command

from autoshard.cli.bench import add_bench
from autoshard.cli.shard import add_shard
from autoshard.cli.show import add_show
from autoshard.cli.solve import add_solve
from autoshard.errors import AutoshardError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    options = _parser().parse_args(argv)
    return run_command(
        lambda: int(options.run(options)),
        AutoshardError,
        text="a file is text, or gzipped text",
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m autoshard",
        description="Search how to run every operator of a program on a device mesh.",
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    for add in (add_solve, add_shard, add_bench, add_show):
        add(commands)
    return parser
