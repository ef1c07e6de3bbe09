"""What a step tells people, by `print`, a logger or a file: it is told when the step has run.

While the step is captured the numbers that it prints have no values; and it prints at each call.
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
    """What a step prints or logs."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    """Texts, and tensors and numbers without values."""

    named: Mapping[str, Any]


@dataclass
class Telling:
    """Puts off what a step tells.

    Args:
        met: Knows when the step runs.
    """

    met: Met
    told: list[Told] = field(default_factory=list)
    """To be done when the step has run."""

    _stack: ExitStack = field(default_factory=ExitStack)
    """Of what is undone when the step has run."""

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Let what is told inside be told later."""
        with ExitStack() as self._stack:
            self._stack.enter_context(self._call_later(builtins, "print"))
            self._stack.enter_context(self._call_later(logging.Logger, "handle"))
            for stream in (sys.stdout, sys.stderr):
                with suppress(AttributeError):  # it is none, or has no attributes of its own
                    self.write_later(stream, of_users=True)
            yield

    def write_later(self, stream: Any, *, of_users: bool = False) -> None:
        """Let what is written to a stream be written when the step has run.

        Args:
            stream: Open to be written.
            of_users: Whether only what the user's own code writes is the step's.
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
        """Let what only tells people something be told when the step has run."""
        original = getattr(owner, name)

        def call(*args: Any, **named: Any) -> None:
            if self.met.is_on() and not _is_said_once(sys._getframe(1)):
                self.told.append(Told(original, tuple(map(_text, args)), named))
            else:
                original(*args, **named)

        return mock.patch.object(owner, name, call)


def _is_said_once(frame: FrameType | None) -> bool:
    """Whether a library says something at its first call only, by a `warning_once`."""
    for _ in range(8):
        if frame is None:
            return False
        if frame.f_code.co_name.endswith("_once"):
            return True
        frame = frame.f_back
    return False


def _text(argument: Any) -> Any:
    """An argument of `print` as it is now, unless it has no value yet; of a logger as it is."""
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
