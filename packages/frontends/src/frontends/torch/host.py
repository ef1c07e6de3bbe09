"""Numbers that Python computes from others that it is given at each call: `1 - lr * weight_decay`.

They are computed by Python itself, once a call, and handed to the program: no device works on them,
and they are rounded as eager PyTorch's are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Number:
    """A number of Python's."""

    function: Callable[..., Any] | None
    """What computes it; None for one that is given."""

    arguments: tuple[Any, ...]
    """Numbers like this one, or constants; the name of one that is given."""

    is_int: bool

    def of(self, given: Mapping[str, float | int]) -> Any:
        """Its value.

        Args:
            given: Numbers by name.
        """
        if self.function is None:
            return given[self.arguments[0]]
        return self.function(*(a.of(given) if isinstance(a, Number) else a for a in self.arguments))
