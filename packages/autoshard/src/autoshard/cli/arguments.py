"""Parts that the commands share: how a command is added, and the file that it writes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any


def add_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    what: str,
    more: str,
    examples: str,
) -> argparse.ArgumentParser:
    """Add a command; returns its parser, whose options have `run` as an attribute.

    Args:
        commands: Argparse's subparsers.
        name: The name of the command.
        run: Takes the options, returns the exit code.
        what: What the command does, for the list of commands.
        more: A longer description, for the command's help.
        examples: Examples, printed below the options.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=what,
        description=more,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def new_file(text: str) -> Path:
    """A file to write at the end; its folder is checked at once, before the command runs."""
    path = Path(text)
    if not path.parent.is_dir() or path.is_dir():
        raise argparse.ArgumentTypeError(
            f"a file is written into a folder that exists; got {text!r}"
        )
    return path
