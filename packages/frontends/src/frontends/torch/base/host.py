"""Numbers that Python computes from others that it is given at each call: `1 - lr * weight_decay`.

They are computed by Python itself, once a call, and handed to the program: no device works on them,
and they are rounded as eager PyTorch's are.
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
    """What torch has written down of a computation with Python's numbers."""

    text: Any
    """A sympy expression."""

    symbols: tuple[Any, ...]
    python: type

    def __call__(self, *values: float | int) -> Any:
        """Its value, from those of the symbols."""
        return self.python(self.text.subs(dict(zip(self.symbols, values, strict=True))))


def number_of(value: Any, names: Mapping[Any, str]) -> Number | None:
    """A number of torch's that follows from given ones; None if it does not, or is none.

    Args:
        value: Any leaf.
        names: Of the given numbers, by torch's symbols for them.
    """
    node = getattr(value, "node", None)
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) or node is None:
        return None
    if not names.keys() >= node.expr.free_symbols:
        return None
    symbols = tuple(names)
    given = tuple(Number(None, (name,), False) for name in names.values())
    return Number(Expression(node.expr, symbols, node.pytype), given, node.pytype is int)


@dataclass(frozen=True, slots=True)
class Number:
    """A number of Python's."""

    function: Callable[..., Any] | None
    """What computes it; None for one that is given."""

    arguments: tuple[Any, ...]
    """Numbers like this one, or constants; the name of one that is given."""

    is_int: bool
    origin: Origin | None = field(default=None, compare=False, repr=False)
    """Where in the user's code it is computed."""

    def of(self, given: Mapping[str, float | int]) -> Any:
        """Its value.

        Args:
            given: Numbers by name.

        Raises:
            StepError: Python cannot compute it, as a quotient by 0.
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
        """The names of what it follows from."""
        if self.function is None:
            return [self.arguments[0]]
        found = [n for a in self.arguments if isinstance(a, Number) for n in a._given()]
        return list(dict.fromkeys(found))
