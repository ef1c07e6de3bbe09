"""Records what a step's Python code reads and writes while it is captured.

A captured step runs without its Python code, so whatever that code read has to be the same when the
program runs again: attributes of modules, of optimizers and of the user's objects (`attributes`),
globals, and variables of closures (`functions`). `Reads` watches all of these while a step runs,
and keeps each value that is read with its place (`met`).

What comes from outside the process (the time) or is used up (the next item of an iterator) differs
at each call: such a step has `effects` and is captured again at every call (`outside_calls`), or is
refused (`streams`, `generators`). Output is deferred until the step has run (`told`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from frontends.torch.capture.attributes import Attributes
from frontends.torch.capture.functions import Functions
from frontends.torch.capture.generators import Generators
from frontends.torch.capture.met import Met
from frontends.torch.capture.named import NamedMembers
from frontends.torch.capture.outside_calls import OutsideCalls
from frontends.torch.capture.schedules import Schedules
from frontends.torch.capture.streams import Streams
from frontends.torch.capture.told import Telling


class Reads:
    """Records what a step reads and writes.

    Args:
        skipped: Attributes that become no guards, as (`id` of the object, name): the program has
            them as inputs.
        moves_schedules: Whether schedules are moved on within the step, not after it.
    """

    def __init__(
        self, skipped: frozenset[tuple[int, str]] = frozenset(), *, moves_schedules: bool = False
    ) -> None:
        self._met = Met(skipped)
        self._telling = Telling(self._met)
        self._schedules = Schedules(self._met, self._telling.told, moves_schedules)
        self._outside = OutsideCalls(self._met)
        self._generators = Generators(self._met)
        self._streams = Streams(self._met, self._telling)
        self.named = NamedMembers()
        """Members of libraries that the step's code names."""

        self._attributes = Attributes(self._met, self._streams, self._generators, self.named)
        self._functions = Functions(self._met, self._attributes, self.named, self._outside)

        self.read = self._met.read
        """By `id` of the container and key, the place and what was there at the first read."""

        self.written = self._met.written
        """By `id` of the container and key, the place and what was there before."""

        self.made = self._met.made
        """By `id`, what the step creates: `__dict__`s of objects, and objects with slots."""

        self.told = self._telling.told
        """What the step prints and logs, to be output after each run."""

        self.effects = self._outside.effects
        """Descriptions of calls that can only be repeated by running the step's code again."""

    @contextmanager
    def recording(self, function: Callable[..., Any], tracers: Any = None) -> Iterator[None]:
        """Inside, a function of the user runs, and its reads and writes are recorded.

        Args:
            function: The function.
            tracers: The module in which the tracer keeps constants.
        """
        self._attributes.tracers = tracers
        self._functions.given(function)
        for kind in (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler):
            self._attributes.watch(kind)
        before = sys.gettrace()
        try:
            with (
                self._outside.watched(),
                self._streams.watched(),
                self._generators.watched(),
                self._telling.put_off(),
                self._schedules.put_off(),
            ):
                sys.settrace(self._functions.called)
                with self._met.running():
                    yield
                    self._functions.find_replaced()
        finally:
            sys.settrace(before)
            self._attributes.unwatch()
            self._functions.find_defaults()
            self._met.find_written()
            self._met.forget_dead()

    def paused(self) -> AbstractContextManager[None]:
        """Inside, nothing is recorded: it is not the step that reads."""
        return self._met.paused()

    def put_generators_back(self) -> list[str]:
        """Reset all generators; return the types of those from which something was drawn."""
        return self._generators.put_back()

    def put_schedules_back(self) -> None:
        """Let no schedule have a stand-in for a number."""
        self._schedules.put_back()

    def look_around(self, objects: Mapping[type, Sequence[Any]]) -> None:
        """Find, before a recording, what only a walk over all objects of the process finds.

        Args:
            objects: The user's functions, and the streams, of the process by type.
        """
        self._streams.look_around(objects)
        self._functions.look_around(objects)
