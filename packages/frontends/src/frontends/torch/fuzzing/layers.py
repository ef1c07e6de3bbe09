"""Layers that keep state in Python or in buffers, or pass on tensors of another memory layout."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

Tensor = torch.Tensor


class Residual(nn.Module):
    """Adds its input to half the tanh of the inner module's output."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        return x + 0.5 * torch.tanh(self.inner(x))


class Scaled(nn.Module):
    """Multiplies by a number that the user may set."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Return the product."""
        return x * self.scale


class Counting(nn.Module):
    """Counts calls in Python, and scales by a factor that grows with the count up to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled input."""
        self.calls += 1
        return x * min(1.0, 0.4 * self.calls)


class Running(nn.Module):
    """Subtracts a running mean over all batches, which is a buffer."""

    mean: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        """Return the difference."""
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(x.flatten(0, -2).mean(0), 0.3)
        return x - self.mean


class First(nn.Module):
    """Returns the first result of another module, such as a recurrent one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        """Return its outputs without its state."""
        return self.inner(x)[0]


class Transposed(nn.Module):
    """Applies dropout to a tensor whose memory is in another order."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the input's shape."""
        return functional.dropout(x.transpose(0, 1), self.p, self.training).transpose(0, 1)


class Mean(nn.Module):
    """Averages over a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        """Return one row for each example."""
        return x.mean(1)
