"""An equation as the functions of a rule see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from frontends.jax.base._compat import JaxprEqn, aval

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Described:
    """An equation of a primitive, with the shapes that its rule is asked about."""

    equation: JaxprEqn
    """The equation on whole arrays. Its operands also have dtypes, and may be literals."""

    operands: tuple[Shape, ...]
    """Shapes of its operands, or of parts of them."""

    results: tuple[Shape, ...]
    """Shapes of the results that it computes from operands of these shapes."""

    masked: bool = True
    """Whether dims that are indexed may be split: devices can mask indices, microbatches cannot."""

    @classmethod
    def of(cls, equation: JaxprEqn, *, masked: bool = True) -> Described:
        """Describe an equation on whole arrays."""
        operands = tuple(aval(v).shape for v in equation.invars)
        return cls(equation, operands, tuple(aval(v).shape for v in equation.outvars), masked)

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The parameters of the primitive."""
        return self.equation.params

    @property
    def is_whole(self) -> bool:
        """Whether the shapes are those of the whole arrays."""
        whole = Described.of(self.equation)
        return (self.operands, self.results) == (whole.operands, whole.results)
