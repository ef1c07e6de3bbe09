"""Random number generators other than torch's, from which no program can draw.

Draws from the global generators of Python and NumPy are recorded with their line. Other generators
that a step uses are compared with their state before, and reset to it.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np

from frontends.torch.capture.met import Met
from frontends.torch.capture.refusals import note_draw

TYPES = random.Random, np.random.Generator, np.random.RandomState

_DRAWS = tuple(
    (owner, name)
    for owner, generator in ((random, random._inst), (np.random, np.random.mtrand._rand))
    for name, each in vars(owner).items()
    if getattr(each, "__self__", None) is generator
    and name not in ("seed", "getstate", "setstate", "get_state", "set_state")
)
"""Functions that draw from the global generators of Python and NumPy."""


@dataclass
class Generators:
    """The generators that a step uses.

    Args:
        met: Tells when the step runs.
    """

    met: Met
    _states: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """By `id`, generators and their states when the step first used them."""

    def add(self, generator: Any) -> None:
        """Record the state of a generator that the step uses."""
        self._states.setdefault(id(generator), (generator, _state(generator)))

    def put_back(self) -> list[str]:
        """Reset all generators; return the types of those from which something was drawn."""
        drawn = [(one, state) for one, state in self._states.values() if _state(one) != state]
        for one, state in drawn:
            if isinstance(one, random.Random):
                one.setstate(state)
            elif isinstance(one, np.random.Generator):
                one.bit_generator.state = pickle.loads(state)
            else:
                one.set_state(pickle.loads(state))
        return [type(one).__name__ for one, _ in drawn]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, record the line where the step draws from a global generator."""
        with ExitStack() as stack:
            for owner, name in _DRAWS:
                stack.enter_context(self._draws(owner, name))
            yield

    def _draws(self, owner: Any, name: str) -> Any:
        original = getattr(owner, name)

        def call(*args: Any, **named: Any) -> Any:
            if self.met.is_on():
                note_draw()
            return original(*args, **named)

        return mock.patch.object(owner, name, call)


def _state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return pickle.dumps(generator.bit_generator.state)
    return pickle.dumps(generator.get_state(legacy=False))
