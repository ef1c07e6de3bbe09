"""What many programs are made of: data, small models."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from frontends.torch.fuzzing import Data
from torch import nn

from torch_programs.driver import Skipped

Tensor = torch.Tensor
__all__ = ["Data", "Tensor", "adam", "mlp", "needed", "sgd"]


def mlp(size: int = 6, hidden: int = 16, out: int = 3, dropout: float = 0.0) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(size, hidden), nn.Tanh(), nn.Dropout(dropout), nn.Linear(hidden, out)
    )


def sgd(model: nn.Module, lr: float = 0.1, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr, **options)


def adam(model: nn.Module, lr: float = 1e-2, **options: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=lr, **options)


def needed(name: str) -> Any:
    """A library that not every environment has."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Skipped(f"{name} is not installed") from error
