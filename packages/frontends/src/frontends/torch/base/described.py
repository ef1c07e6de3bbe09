"""A call with shapes and types: all that a sharding rule can ask about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from frontends.torch.base.calls import Call, Operand, reads
from frontends.torch.base.flat import TensorType

Shapes = Sequence[tuple[int, ...]]


class Described:
    """A call with the shapes and types of its operands and results.

    Args:
        call: The call.
        operands: Shapes of its operands, or of shards of these.
        results: Shapes of the results for such operands.
        masked: Whether a rule may split a dim that is indexed, which needs masks.
        dtypes: Types of operands and of results; empty if only shapes matter.
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
        cls,
        call: Call,
        operands: Sequence[TensorType],
        results: Sequence[TensorType],
        *,
        masked: bool = True,
    ) -> Described:
        """Return the description of a call on whole tensors."""
        kinds = operands, results
        shapes = ([kind.shape for kind in side] for side in kinds)
        dtypes = [kind.dtype for kind in operands], [kind.dtype for kind in results]
        return cls(call, *shapes, masked=masked, dtypes=dtypes)

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The call's arguments that are no tensors, by name; defaults where none is passed."""
        names = (declared.name for declared in self.call.target._schema.arguments)
        arguments = {name: self.call.argument(name) for name in names}
        return {name: value for name, value in arguments.items() if not reads(value)}

    def place(self, name: str) -> int | None:
        """Return the index of the operand passed as this argument; None if it is no operand."""
        value = self.call.argument(name) if self.call.has(name) else None
        return value.place if isinstance(value, Operand) else None

    def dims(self, name: str = "dim", rank: int | None = None) -> tuple[int, ...]:
        """Return the dims that an argument names, as indices from 0; all dims if it names none."""
        rank = len(self.operands[0]) if rank is None else rank
        value = self.call.argument(name) if self.call.has(name) else None
        if value is None or value == []:
            return tuple(range(rank))
        return tuple(d % max(rank, 1) for d in ([value] if isinstance(value, int) else value))

    def dim(self, name: str = "dim", rank: int | None = None) -> int:
        """Return the dim that an argument names, as an index from 0."""
        return self.dims(name, rank)[0]


def letters(n: int, skipped: str = "") -> str:
    """Return `n` letters to name dims, none of them in `skipped`."""
    return "".join(
        c for c in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in skipped
    )[:n]
