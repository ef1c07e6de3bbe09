"""What a step reads of Python while it is captured, and what it does there.

A captured step runs without its Python code, so whatever that code looked at has to be the same
when the program runs again: attributes of modules, of optimizers and of the user's objects
(`attributes`), globals, and variables of closures (`functions`). `Reads` has them watched while a
step runs; what is found there is kept by its place (`met`).

What comes from outside of the program (the time, the next item of an iterator) is another thing at
each call: such a step has `effects`, and is captured again at every call (`outside_calls`), or is
refused (`streams`, `generators`). What it tells people is told when it has run (`told`).
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
from frontends.torch.capture.named import Named
from frontends.torch.capture.outside_calls import OutsideCalls
from frontends.torch.capture.streams import Streams
from frontends.torch.capture.told import Telling


class Reads:
    """What was read and written.

    Args:
        skipped: Attributes that are no guards, as (id of the object, name): the step knows them.
    """

    def __init__(self, skipped: frozenset[tuple[int, str]] = frozenset()) -> None:
        self._met = Met(skipped)
        self._telling = Telling(self._met)
        self._outside = OutsideCalls(self._met)
        self._generators = Generators(self._met)
        self._streams = Streams(self._met, self._telling)
        self.named = Named()
        """What it names of libraries."""

        self._attributes = Attributes(self._met, self._streams, self._generators, self.named)
        self._functions = Functions(self._met, self._attributes, self.named, self._outside)

        self.read = self._met.read
        """By container and key, what was there when it was read first."""

        self.written = self._met.written
        """By container and key, what was there before."""

        self.made = self._met.made
        """By `id`, what the step makes: attributes of objects, and objects with slots."""

        self.told = self._telling.told
        """What the step prints and logs, to be done when it has run."""

        self.effects = self._outside.effects
        """What cannot be done again but by running the code."""

    @contextmanager
    def recording(self, function: Callable[..., Any], tracers: Any = None) -> Iterator[None]:
        """Watch what a function reads, which is called inside.

        Args:
            function: Of the user.
            tracers: The module in which a tracer keeps constants.
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
        """What is read meanwhile is not the step's to read."""
        return self._met.paused()

    def put_generators_back(self) -> list[str]:
        """Let nothing have been drawn; the types of generators from which something was."""
        return self._generators.put_back()

    def look_around(self, objects: Mapping[type, Sequence[Any]]) -> None:
        """Find what only a walk over all objects of the process can find, before a recording.

        Args:
            objects: By type.
        """
        self._streams.look_around(objects)
        self._functions.look_around(objects)
