"""Training data that does not depend on how often the program draws random numbers."""

from __future__ import annotations

import torch

Tensor = torch.Tensor


class Data:
    """A source of batches with a generator of its own.

    Args:
        seed: Seed of that generator.
    """

    def __init__(self, seed: int = 0) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        """Return normally distributed numbers."""
        return torch.randn(shape, generator=self._generator)

    def uniform(self, *shape: int) -> Tensor:
        """Return uniformly distributed numbers in [0, 1)."""
        return torch.rand(shape, generator=self._generator)

    def classes(self, n: int, *shape: int) -> Tensor:
        """Return integers from 0 to `n - 1`."""
        return torch.randint(n, shape, generator=self._generator)

    def labelled(self, n: int = 8, size: int = 6, classes: int = 3) -> tuple[Tensor, Tensor]:
        """Return rows and their labels."""
        return self.normal(n, size), self.classes(classes, n)
