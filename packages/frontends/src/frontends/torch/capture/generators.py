"""Generators of random numbers that are not torch's, of which no program can draw.

What a step draws from Python's and NumPy's own is noted. Others that it meets are compared with
what they were, and put back.
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
"""Functions that draw by the generators that Python and NumPy have one of."""


@dataclass
class Generators:
    """Those that a step meets.

    Args:
        met: Knows when the step runs.
    """

    met: Met
    _states: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """Generators, and their states when they were met."""

    def add(self, generator: Any) -> None:
        """One that the step looks at."""
        self._states.setdefault(id(generator), (generator, _state(generator)))

    def put_back(self) -> list[str]:
        """Let nothing have been drawn; the types of generators from which something was."""
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
        """Let it be noted where the step draws by functions of modules."""
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
