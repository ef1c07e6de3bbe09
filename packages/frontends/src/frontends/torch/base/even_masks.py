"""Masks that select equally many elements of each example.

`hidden[is_end]` selects a row of each example; which one differs. Its result has no dim of examples
of its own, and an operator that selects by a mask needs all of it at once. If each example has as
many selected elements as any other, the same is computed example by example: the places of these
elements are found in each, and read or written along that dim. That each has as many is a guard, as
their number is (`lengths`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

Tensor = torch.Tensor
aten: Any = torch.ops.aten


@dataclass(frozen=True, slots=True)
class EvenMask:
    """A mask whose rows, each of an example, have equally many true elements."""

    mask: Tensor
    """Of shape (examples, elements)."""

    each: int
    """How many elements of a row are true."""

    @classmethod
    def of(cls, mask: Tensor, n_true: int, n_examples: int) -> EvenMask | None:
        """Return a mask by examples; None if it cannot be cut so, or they have unequal numbers.

        Args:
            mask: A mask of any shape; examples are its major dim, or the major part of that.
            n_true: How many of its elements are true.
            n_examples: How many examples there are.

        Raises:
            GuardOnDataDependentSymNode: Its values are not known before the step runs.
        """
        if n_examples < 2 or not n_true or n_true % n_examples or mask.shape[0] % n_examples:
            return None
        rows = aten.reshape.default(mask, [n_examples, -1]) != 0
        each = n_true // n_examples
        return cls(rows, each) if bool((rows.sum(1) == each).all()) else None

    def _places_before(self) -> Tensor:
        """Return, for each element, how many before it in its row are true."""
        return self.mask.cumsum(1) - self.mask.long()

    def places(self) -> Tensor:
        """Return the places of the true elements in each row, of shape (examples, each)."""
        n, size = self.mask.shape
        places = torch.arange(size, device=self.mask.device).expand(n, size)
        if self.each == size:
            return places
        # those that are not true are written to one more place, which is cut off
        where = torch.where(self.mask, self._places_before(), self.each)
        found = places.new_zeros((n, self.each + 1)).scatter(1, where, places)
        return found[:, : self.each]

    def _indices(self) -> list[Tensor]:
        rows = torch.arange(self.mask.shape[0], device=self.mask.device)
        return [rows.unsqueeze(1), self.places()]

    def read(self, source: Tensor, n_dims: int) -> Tensor:
        """Return the elements, as `source[mask]`.

        Args:
            source: A tensor whose leading dims are those of the mask.
            n_dims: How many dims these are.
        """
        rest = source.shape[n_dims:]
        rows = aten.reshape.default(source, [*self.mask.shape, *rest])
        elements: Tensor = aten.index.Tensor(rows, self._indices())
        return elements.view(self.mask.shape[0] * self.each, *rest)

    def write(self, target: Tensor, n_dims: int, values: Tensor, *, adds: bool) -> Tensor:
        """Write or add elements, as `target.index_put([mask], values, adds)`.

        Args:
            target: A tensor whose leading dims are those of the mask.
            n_dims: How many dims these are.
            values: One for each true element of the mask, in their order, or what is broadcast to
                these.
            adds: Whether to add to the target's elements, rather than to replace them.
        """
        rest = target.shape[n_dims:]
        n = self.mask.shape[0]
        if values.dim() > len(rest) and values.shape[0] != 1:
            values = aten.reshape.default(values, [n, self.each, *values.shape[1:]])
        rows = aten.reshape.default(target, [*self.mask.shape, *rest])
        written: Tensor = aten.index_put.default(rows, self._indices(), values, adds)
        return written.view(target.shape)

    def scatter(self, target: Tensor, n_dims: int, source: Tensor) -> Tensor:
        """Write the elements of a source in order, as `masked_scatter`.

        Args:
            target: A tensor whose leading dims are those of the mask.
            n_dims: How many dims these are.
            source: It has as many elements as are written.
        """
        (n, size), rest = self.mask.shape, math.prod(target.shape[n_dims:])
        given = aten.reshape.default(source, [n, self.each, rest])
        before = self._places_before().clamp(max=self.each - 1).unsqueeze(2).expand(n, size, rest)
        rows = aten.reshape.default(target, [n, size, rest])
        written = torch.where(self.mask.unsqueeze(2), given.gather(1, before), rows)
        return written.view(target.shape)


def without_copies(mask: Tensor) -> Tensor:
    """Return a mask without those of its last dims that an expansion has made."""
    while mask.dim() > 1 and mask.shape[-1] > 1 and mask.stride(-1) == 0:
        mask = mask.select(-1, 0)
    return mask
