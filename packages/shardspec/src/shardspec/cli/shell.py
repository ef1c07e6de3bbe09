"""What the command lines of all packages have in common: a parser, running a command, printing.

An error that a command expects is one line on standard error; wrong usage is one line, too, with
exit code 2.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

_MAX_MESSAGE = 1_000
"""Most characters of an error about wrong usage, which may repeat a long argument."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with code 2."""
        line = _one_line(message)
        if len(line) > _MAX_MESSAGE:
            line = f"{line[:_MAX_MESSAGE]}..."
        self.exit(2, f"{self.prog}: error: {line}\n")


def run_command(command: Callable[[], int | None], *expected: type[Exception], text: str) -> int:
    """Run a command and return its exit code, which is 1 after an expected error.

    Args:
        command: What to run; it returns an exit code, or None for 0.
        expected: The errors to print as one line, besides `OSError`.
        text: What a file holds that can be read, for the error about one that is no text.
    """
    errors: tuple[type[Exception], ...] = (*expected, OSError)
    try:
        code = command()
        if sys.stdout is not None:  # it is None if the shell closed it with `>&-`
            sys.stdout.flush()
        return code or 0
    except BrokenPipeError:
        discard_output()
        return 0
    except UnicodeDecodeError as error:
        return _fail(f"{text}; got {error}")
    except errors as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        _fail("interrupted")
        return 130


def discard_output() -> None:
    """Discard what is still to be printed, after the reader closed the pipe as `| head` does.

    Python flushes standard output once more when it ends, which must not fail again.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_text(text: str) -> None:
    """Print a text; characters that standard output cannot show are escaped."""
    encoding = _encoding()
    print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def can_show(text: str) -> bool:
    """Whether standard output can show these characters."""
    try:
        text.encode(_encoding())
    except UnicodeEncodeError:
        return False
    return True


def _encoding() -> str:
    """The encoding of standard output, which may be closed or replaced by the caller."""
    return getattr(sys.stdout, "encoding", None) or "utf-8"


def _fail(message: str) -> int:
    print(f"error: {_one_line(message)}", file=sys.stderr)
    return 1


def _one_line(message: str) -> str:
    return " ".join(message.split())
