"""Batches of a PyTorch step; each process has the whole batch, as the step may decide by values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from frontends.run.feed import Arrays
from frontends.torch.base.trees import Tree, flatten


@dataclass(frozen=True, slots=True)
class LeafForm:
    """Name, shape and type of a leaf of a batch; `()` and None if it is not a tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype | None

    @classmethod
    def of(cls, name: str, form: Sequence[Any]) -> LeafForm:
        """Return the form of a leaf from its name and its form in `BatchForm`."""
        is_tensor = len(form) > 2
        return cls(name, tuple(form[1]) if is_tensor else (), form[2] if is_tensor else None)


def _flatten(example: Any) -> tuple[list[Any], Tree]:
    leaves, tree = flatten(example)
    return [leaf.value for leaf in leaves], tree


def _fill(tree: Tree, leaves: Sequence[Any]) -> Any:
    return tree.fill(iter(leaves))


ARRAYS = Arrays(torch.zeros, torch.asarray, torch.can_cast, _flatten, _fill)
