"""Numbers that Python computes from numbers that each call passes in: `1 - lr * weight_decay`.

Python itself computes them, once a call, and passes them to the program: they cost no device time,
and are rounded as in eager PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from frontends.torch.base.blame import failure
from frontends.torch.base.origins import Origin


@dataclass(frozen=True, slots=True)
class Expression:
    """A computation with Python's numbers, as torch recorded it symbolically."""

    text: Any
    """A sympy expression."""

    symbols: tuple[Any, ...]
    python: type

    def __call__(self, *values: float | int) -> Any:
        """Return the value for these values of the symbols."""
        return self.python(self.text.subs(dict(zip(self.symbols, values, strict=True))))


def number_of(value: Any, names: Mapping[Any, str]) -> Number | None:
    """Return a symbolic number as a `Number`; None if it is none, or has other symbols.

    Args:
        value: Any leaf.
        names: By symbol, the names of the numbers that each call passes in.
    """
    node = getattr(value, "node", None)
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) or node is None:
        return None
    if not names.keys() >= node.expr.free_symbols:
        return None
    symbols = tuple(names)
    inputs = tuple(Number(None, (name,), False) for name in names.values())
    return Number(Expression(node.expr, symbols, node.pytype), inputs, node.pytype is int)


@dataclass(frozen=True, slots=True)
class Number:
    """A number that Python computes before a step runs, or that the call passes in."""

    function: Callable[..., Any] | None
    """The function that computes it; None for one that the call passes in."""

    arguments: tuple[Any, ...]
    """Arguments of the function: `Number`s and constants. Without a function, the number's name."""

    is_int: bool
    origin: Origin | None = field(default=None, compare=False, repr=False)
    """Where in the user's code it is computed."""

    def of(self, given: Mapping[str, float | int]) -> Any:
        """Return its value.

        Args:
            given: The numbers that the call passes in, by name.

        Raises:
            StepError: Python cannot compute it, such as a division by 0.
        """
        if self.function is None:
            return given[self.arguments[0]]
        values = [a.of(given) if isinstance(a, Number) else a for a in self.arguments]
        try:
            return self.function(*values)
        except Exception as error:
            name = getattr(self.function, "__name__", "a number")
            read = [f"{n} {given[n]!r}" for n in self._given()]
            raise failure(name, self.origin, read, "in Python", error) from error

    def _given(self) -> list[str]:
        """Return the names of the passed-in numbers that it depends on."""
        if self.function is None:
            return [self.arguments[0]]
        names = [n for a in self.arguments if isinstance(a, Number) for n in a._given()]
        return list(dict.fromkeys(names))
