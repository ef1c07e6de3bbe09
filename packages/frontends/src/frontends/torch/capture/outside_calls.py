"""Calls by which a step reads from outside the process: the time, a file, the environment.

Most of them have another result at each call, so that the step has to be captured again at every
call. An environment variable becomes a guard, like any other place that a step reads.
"""

from __future__ import annotations

import builtins
import io
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any
from unittest import mock

import numpy as np
import torch

from frontends.torch.capture.location import MISSING
from frontends.torch.capture.met import Met
from frontends.torch.capture.users_code import is_of_python, is_users

_CLOCKS = (time.time, time.perf_counter, time.monotonic, time.time_ns, time.process_time)
_FILES = ((os, "stat"), (os, "listdir"), (os, "scandir"), (io, "open"))
_STATES = (
    *((torch, "initial_seed"), (torch, "get_rng_state")),
    *((random, "getstate"), (np.random, "get_state")),
)
"""Functions that return the state of random number generators."""


@dataclass
class OutsideCalls:
    """Records such calls of a step.

    Args:
        met: Receives reads of environment variables; tells when the step runs.
    """

    met: Met
    effects: dict[str, None] = field(default_factory=dict)
    """Descriptions of calls that can only be repeated by running the step's code again."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, record such calls."""
        with ExitStack() as stack:
            for owner, name in (
                *((builtins, name) for name in ("input", "open")),
                *((time, clock.__name__) for clock in _CLOCKS),
                *_STATES,
            ):
                stack.enter_context(self._seen(owner, name))
            for owner, name in _FILES:
                stack.enter_context(self._seen(owner, name, through_library=True))
            environment = self._environment()
            stack.enter_context(mock.patch.object(type(os.environ), "__getitem__", environment))
            yield

    def look_at(self, value: Any, name: str) -> None:
        """Record a global that code names, if it is a clock that was imported from `time`."""
        if any(value is clock for clock in _CLOCKS):
            self._note(name)

    def _note(self, name: str) -> None:
        self.effects.setdefault(f"a call of {name}()")

    def _seen(self, owner: Any, name: str, *, through_library: bool = False) -> Any:
        """Patch a function of Python's library so that calls by the user's code are recorded.

        Args:
            owner: The module of the function.
            name: The name of the function.
            through_library: Whether to count calls that Python's library makes for the user.
        """
        original = getattr(owner, name)

        def call(*args: Any, **named: Any) -> Any:
            if self.met.is_on():
                frame: FrameType | None = sys._getframe(1)
                while through_library and frame and is_of_python(frame.f_code.co_filename):
                    frame = frame.f_back
                if frame and is_users(frame.f_code.co_filename):
                    self._note(name)
            return original(*args, **named)

        return mock.patch.object(owner, name, call)

    def _environment(self) -> Any:
        """Return a replacement for reading an environment variable, which records it."""
        original = type(os.environ).__getitem__

        def get(environment: Any, key: str) -> str:
            if self.met.is_on() and environment is os.environ:
                data, at = vars(environment)["_data"], environment.encodekey(key)
                self.met.add(data, at, data.get(at, MISSING), f"os.environ[{key!r}]")
            return original(environment, key)

        return get
