"""Files, generators and other iterators that exist before a step, and that the step continues.

What a step writes to a file is deferred. What it takes from an iterator is gone at the next call,
and the capture would use it up: such a step is refused.
"""

from __future__ import annotations

import _io
import builtins
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from frontends.errors import UnsupportedStepError
from frontends.torch.base import origins
from frontends.torch.capture.met import Met
from frontends.torch.capture.told import Telling
from frontends.torch.capture.users_code import is_users


@dataclass
class Streams:
    """Checks which files and iterators a step uses that existed before it.

    Args:
        met: What the step reads.
        telling: Defers what it writes.
    """

    met: Met
    telling: Telling
    _there: frozenset[int] = frozenset()
    """`id`s of files, generators and other iterators that existed before the step."""

    _written_to: list[Any] = field(default_factory=list)
    """Files that the step may write to."""

    def look_around(self, objects: Mapping[type, Sequence[Any]]) -> None:
        """Find the files and iterators that exist before a recording.

        Args:
            objects: All objects of the process that `is_stream` holds for, by type.
        """
        streams = [ones for kind, ones in objects.items() if is_stream(kind)]
        self._there = frozenset(id(one) for ones in streams for one in ones)

    def check(self, value: Any, name: str) -> None:
        """Check a value that the user's code names and may use by a loop, `send()` or `write()`.

        Raises:
            UnsupportedStepError: It existed before the step, and is not a file open for writing.
        """
        if id(value) not in self._there:
            return
        if hasattr(value, "writerow"):
            raise UnsupportedStepError(
                "what a step writes to a file is written when it has run, but for what goes by a "
                f"csv.writer as {name} here: write the row after the step"
            )
        if _is_file(type(value)) and (value.closed or value.writable()):
            if value not in self._written_to:
                self._written_to.append(value)
                self.telling.write_later(value)
        else:
            raise UnsupportedStepError(
                "a step gets values that change as its arguments, so that a capture uses nothing "
                f"up; this one goes on with {name}, a {type(value).__name__} from before the step: "
                "take the values from it before the step, and pass them to the step"
            )

    def watched(self) -> AbstractContextManager[Any]:
        """Inside, refuse `next` of an iterator from before the step."""
        original = builtins.next

        def call(*args: Any) -> Any:
            if (
                self.met.is_on()
                and is_users(sys._getframe(1).f_code.co_filename)
                and self.met.was_there(args[0])
            ):
                raise UnsupportedStepError(
                    "a step gets values that change as its arguments, so that a capture uses "
                    "nothing up; this one takes the next item of a "
                    f"{type(args[0]).__name__}, at {origins.calling_line()}: take it before "
                    "the step, and pass it to the step"
                )
            return original(*args)

        return mock.patch.object(builtins, "next", call)


def is_stream(kind: type) -> bool:
    """Return whether objects of a type are iterators or files that a step may continue."""
    return _is_iterator(kind) or _is_file(kind)


def _is_iterator(kind: type) -> bool:
    """Return whether objects of a type are used up by iteration that no Python code shows."""
    return kind.__module__ in ("builtins", "itertools") and hasattr(kind, "__next__")


def _is_file(kind: type) -> bool:
    """Return whether objects of a type are read or written by code that is not Python."""
    return issubclass(kind, _io._IOBase) or kind.__module__ == "_csv"
