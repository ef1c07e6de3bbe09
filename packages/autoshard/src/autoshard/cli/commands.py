"""The command line: solve an IOPDDL file, shard a graph, bench a folder of files, show a file.

What can go wrong on purpose ends as one line and exit code 1, wrong usage as exit code 2.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from autoshard.cli.arguments import Parser
from autoshard.cli.bench import add_bench
from autoshard.cli.shard import add_shard
from autoshard.cli.show import add_show
from autoshard.cli.solve import add_solve
from autoshard.errors import AutoshardError


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


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m autoshard",
        description="Search how to run every operator of a program on a device mesh.",
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    for add in (add_solve, add_shard, add_bench, add_show):
        add(commands)
    return parser
