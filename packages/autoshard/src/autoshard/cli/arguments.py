"""What the command line's parts share: the parser, how a command is added, types of arguments."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


def add_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    what: str,
    more: str,
    examples: str,
) -> argparse.ArgumentParser:
    """A subparser whose options know how to `run`.

    Args:
        commands: Argparse's subparsers.
        name: Of the command.
        run: Takes the options, returns the exit code.
        what: It does, for the list of commands.
        more: For its own help.
        examples: Below the options.
    """
    found: argparse.ArgumentParser = commands.add_parser(
        name,
        help=what,
        description=more,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.set_defaults(run=run)
    return found


def seconds(text: str) -> float:
    """A time."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"a time is a number of seconds > 0; got {text!r}")
    return value


def new_file(text: str) -> Path:
    """A file to write when all is done, so that its folder had better be there before."""
    path = Path(text)
    if not path.parent.is_dir() or path.is_dir():
        raise argparse.ArgumentTypeError(f"a file is written into a folder that is; got {text!r}")
    return path


def whole(text: str) -> int:
    """A seed."""
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise argparse.ArgumentTypeError(f"a seed is a whole number >= 0; got {text!r}")
    return int(text)


def count(text: str) -> int:
    """A number of steps."""
    if whole(text) < 1:
        raise argparse.ArgumentTypeError(f"there is at least one step; got {text!r}")
    return int(text)
