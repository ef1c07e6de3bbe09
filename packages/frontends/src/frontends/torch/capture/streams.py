"""Files, generators and other iterators that a step goes on with, and that were begun before it.

What a step writes to a file is put off. What it takes of an iterator is gone at the next call, and
its capture would use it up: such a step is refused.
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
    """What there was before, and what a step may do with it.

    Args:
        met: What the step reads.
        telling: Puts off what it writes.
    """

    met: Met
    telling: Telling
    _there: frozenset[int] = frozenset()
    """By `id`, files, generators and other iterators that there were before."""

    _written_to: list[Any] = field(default_factory=list)
    """Files that the step may write to."""

    def look_around(self, objects: Mapping[type, Sequence[Any]]) -> None:
        """Find those that there are, before a recording.

        Args:
            objects: All of the process, by type.
        """
        streams = [ones for kind, ones in objects.items() if _is_iterator(kind) or _is_file(kind)]
        self._there = frozenset(id(one) for ones in streams for one in ones)

    def check(self, value: Any, name: str) -> None:
        """What the user's code names it goes on with, be it by a loop, `send()` or `write()`.

        Raises:
            UnsupportedStepError: It is no file, or one that is read.
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
                "a step gets what changes by its arguments, so that it can be captured without "
                f"using it up; this one goes on with {name}, a {type(value).__name__} that was "
                "begun before: take what comes of it before the step, and give it to the step"
            )

    def watched(self) -> AbstractContextManager[Any]:
        """Let `next` of what was there before be refused inside."""
        original = builtins.next

        def call(*args: Any) -> Any:
            if (
                self.met.is_on()
                and is_users(sys._getframe(1).f_code.co_filename)
                and self.met.was_there(args[0])
            ):
                raise UnsupportedStepError(
                    "a step gets what changes by its arguments, so that it can be captured "
                    f"without using it up; this one takes the next item of a "
                    f"{type(args[0]).__name__}, at {origins.calling_line()}: take it before "
                    "the step, and give it to the step"
                )
            return original(*args)

        return mock.patch.object(builtins, "next", call)


def _is_iterator(kind: type) -> bool:
    """Whether values are used up by whoever goes on with them, without Python code that says so."""
    return kind.__module__ in ("builtins", "itertools") and hasattr(kind, "__next__")


def _is_file(kind: type) -> bool:
    """Whether values are written to, or read of, without Python code that says so."""
    return issubclass(kind, _io._IOBase) or kind.__module__ == "_csv"
