"""What a rule may ask about a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from frontends.torch.base.calls import Call, Operand, reads
from frontends.torch.base.flat import Kind

Shapes = Sequence[tuple[int, ...]]


class Described:
    """A call with the shapes and types around it.

    Args:
        call: Any.
        operands: Shapes of its operands, or of their parts.
        results: Of what it makes of these.
        masked: Whether what is indexed may be split.
        dtypes: Of operands and results, where shapes are not all that is asked.
    """

    def __init__(
        self,
        call: Call,
        operands: Shapes,
        results: Shapes,
        *,
        masked: bool = True,
        dtypes: tuple[Sequence[torch.dtype], Sequence[torch.dtype]] = ((), ()),
    ) -> None:
        self.call, self.masked = call, masked
        self.operands, self.results = tuple(map(tuple, operands)), tuple(map(tuple, results))
        self.operand_dtypes, self.result_dtypes = dtypes

    @classmethod
    def of(
        cls, call: Call, operands: Sequence[Kind], results: Sequence[Kind], *, masked: bool = True
    ) -> Described:
        """A call on whole tensors."""
        kinds = operands, results
        shapes = ([kind.shape for kind in side] for side in kinds)
        dtypes = [kind.dtype for kind in operands], [kind.dtype for kind in results]
        return cls(call, *shapes, masked=masked, dtypes=dtypes)

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The call's arguments that are no tensors, and defaults, by name."""
        names = (declared.name for declared in self.call.target._schema.arguments)
        given = {name: self.call.argument(name) for name in names}
        return {name: value for name, value in given.items() if not reads(value)}

    def place(self, name: str) -> int | None:
        """The operand that is the argument of that name; None for an argument that is none."""
        value = self.call.argument(name) if self.call.has(name) else None
        return value.place if isinstance(value, Operand) else None

    def dims(self, name: str = "dim", rank: int | None = None) -> tuple[int, ...]:
        """An argument that names dims, counted from the first; all of them if it names none."""
        rank = len(self.operands[0]) if rank is None else rank
        value = self.call.argument(name) if self.call.has(name) else None
        if value is None or value == []:
            return tuple(range(rank))
        return tuple(d % max(rank, 1) for d in ([value] if isinstance(value, int) else value))

    def dim(self, name: str = "dim", rank: int | None = None) -> int:
        """An argument that names one dim."""
        return self.dims(name, rank)[0]


def letters(n: int, skipped: str = "") -> str:
    """So many letters for dims, none of `skipped`."""
    return "".join(
        c for c in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in skipped
    )[:n]
