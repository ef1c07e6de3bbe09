"""Numbers to train on that do not depend on how often the program draws."""

from __future__ import annotations

import torch

Tensor = torch.Tensor


class Data:
    """A source of batches with a generator of its own.

    Args:
        seed: Of that generator.
    """

    def __init__(self, seed: int = 0) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        """Normal numbers."""
        return torch.randn(shape, generator=self._generator)

    def uniform(self, *shape: int) -> Tensor:
        """Numbers in [0, 1)."""
        return torch.rand(shape, generator=self._generator)

    def classes(self, n: int, *shape: int) -> Tensor:
        """Whole numbers below `n`."""
        return torch.randint(n, shape, generator=self._generator)

    def labelled(self, n: int = 8, size: int = 6, classes: int = 3) -> tuple[Tensor, Tensor]:
        """Rows and their labels."""
        return self.normal(n, size), self.classes(classes, n)
