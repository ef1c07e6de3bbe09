"""What a rule may ask about an equation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from frontends.jax.base._compat import JaxprEqn, aval

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Described:
    """An equation of a primitive, with the shapes that it is asked about."""

    equation: JaxprEqn
    """For whole arrays; its operands have types, too, and may be literals."""

    operands: tuple[Shape, ...]
    """Shapes of its operands, or of their parts."""

    results: tuple[Shape, ...]
    """Shapes of what it makes of these."""

    masked: bool = True
    """Whether what is indexed may be split, as devices can; microbatches cannot."""

    @classmethod
    def of(cls, equation: JaxprEqn, *, masked: bool = True) -> Described:
        """An equation of whole arrays."""
        operands = tuple(aval(v).shape for v in equation.invars)
        return cls(equation, operands, tuple(aval(v).shape for v in equation.outvars), masked)

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The parameters of the primitive."""
        return self.equation.params

    @property
    def is_whole(self) -> bool:
        """Whether the shapes are those of the equation."""
        whole = Described.of(self.equation)
        return (self.operands, self.results) == (whole.operands, whole.results)
