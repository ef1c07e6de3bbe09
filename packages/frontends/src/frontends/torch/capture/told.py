"""Output of a step by `print`, a logger or a file, which is deferred until the step has run.

During the capture, the numbers to print have no values. Each call of the program then makes the
output.
"""

from __future__ import annotations

import builtins
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any
from unittest import mock

import torch

from frontends.errors import UnsupportedStepError
from frontends.torch.base import origins
from frontends.torch.base.compat.values import is_value
from frontends.torch.base.trees import leaves_of
from frontends.torch.capture.met import Met
from frontends.torch.capture.users_code import is_users


@dataclass(frozen=True, slots=True)
class Told:
    """One output of a step."""

    function: Callable[..., Any]
    """The function that prints, logs or writes."""

    arguments: tuple[Any, ...]
    """Its arguments: texts, and tensors and numbers without values."""

    named: Mapping[str, Any]
    """Its keyword arguments."""


@dataclass
class Telling:
    """Defers the output of a step.

    Args:
        met: Tells when the step runs.
    """

    met: Met
    told: list[Told] = field(default_factory=list)
    """The deferred output."""

    _stack: ExitStack = field(default_factory=ExitStack)
    """Undoes the patches when the step has run."""

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Inside, defer output."""
        with ExitStack() as self._stack:
            self._stack.enter_context(self._call_later(builtins, "print"))
            self._stack.enter_context(self._call_later(logging.Logger, "handle"))
            for stream in (sys.stdout, sys.stderr):
                with suppress(AttributeError):  # it is None, or its attributes cannot be set
                    self.write_later(stream, of_users=True)
            yield

    def write_later(self, stream: Any, *, of_users: bool = False) -> None:
        """Defer writes to a stream until the step has run.

        Args:
            stream: A stream open for writing.
            of_users: Whether to defer only writes by the user's own code.
        """

        def later(method: str) -> Any:
            original = getattr(stream, method)

            def call(*args: Any) -> Any:
                is_on = self.met.is_on()
                if not is_on or (of_users and not is_users(sys._getframe(1).f_code.co_filename)):
                    return original(*args)
                self.told.append(Told(original, args, {}))
                return len(args[0]) if args else None

            return mock.patch.object(stream, method, call)

        for method in ("write", "flush"):
            self._stack.enter_context(later(method))

    def _call_later(self, owner: Any, name: str) -> Any:
        """Defer calls of a function that only outputs something."""
        original = getattr(owner, name)

        def call(*args: Any, **named: Any) -> None:
            if self.met.is_on() and not _is_said_once(sys._getframe(1)):
                self.told.append(Told(original, tuple(map(_text, args)), named))
            else:
                original(*args, **named)

        return mock.patch.object(owner, name, call)


def _is_said_once(frame: FrameType | None) -> bool:
    """Return whether a library outputs something at its first call only, by a `warning_once`."""
    for _ in range(8):
        if frame is None:
            return False
        if frame.f_code.co_name.endswith("_once"):
            return True
        frame = frame.f_back
    return False


def _text(argument: Any) -> Any:
    """Return an argument of an output: as text, unless it has no value yet or is a log record."""
    if isinstance(argument, logging.Logger) or is_value(argument):
        return argument
    if isinstance(argument, logging.LogRecord):
        argument.getMessage()
        return argument
    leaves = leaves_of(argument)
    if any(isinstance(leaf, torch.Tensor) or is_value(leaf) for leaf in leaves):
        raise UnsupportedStepError(
            "a step prints single tensors that it computes; this one prints others, or some in a "
            f"{type(argument).__name__}, at {origins.calling_line()}: print them one by one, or "
            "return them from the step and print them there"
        )
    return str(argument)
