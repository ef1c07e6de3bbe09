"""What a rule may ask about a call."""

from __future__ import annotations

from collections.abc import Sequence

from frontends.torch.base.calls import Call, Operand
from frontends.torch.base.flat import Kind


class Described:
    """A call with the shapes and types around it.

    Args:
        call: Any.
        operands: Of its operands.
        results: Of what it makes.
        masked: Whether what is indexed may be split.
    """

    def __init__(
        self, call: Call, operands: Sequence[Kind], results: Sequence[Kind], masked: bool
    ) -> None:
        self.call, self.masked = call, masked
        self.operands = tuple(kind.shape for kind in operands)
        self.results = tuple(kind.shape for kind in results)
        self.operand_dtypes = tuple(kind.dtype for kind in operands)
        self.result_dtypes = tuple(kind.dtype for kind in results)

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
