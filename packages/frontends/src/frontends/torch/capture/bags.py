"""Bags of embeddings of equal length, as sums over a dim.

PyTorch makes indices of shape (bags, length) flat and counts where each bag begins. Its operator
then needs all bags at once. An embedding and a sum, a mean or a maximum over the dim of a bag
compute the same, and bags can be split.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

Tensor = torch.Tensor


def bags_of_equal_length(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return `embedding_bag` of `torch.nn.functional`, for indices in rows without its operator.

    Args:
        original: The function of PyTorch; it is called for all else, and checks the arguments.
    """

    def embedding_bag(
        input: Tensor,
        weight: Tensor,
        offsets: Any = None,
        max_norm: Any = None,
        norm_type: float = 2,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        per_sample_weights: Any = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> Tensor:
        is_plain = input.dim() == 2 and offsets is None and input.shape[1] > 0
        is_weighted = per_sample_weights is not None
        if (
            not is_plain
            or max_norm is not None
            or scale_grad_by_freq
            or mode not in ("sum", "mean", "max")
            or (is_weighted and (mode != "sum" or per_sample_weights.shape != input.shape))
            or (mode == "max" and (padding_idx is not None or sparse))
        ):
            return original(
                input,
                weight,
                offsets,
                max_norm,
                norm_type,
                scale_grad_by_freq,
                mode,
                sparse,
                per_sample_weights,
                include_last_offset,
                padding_idx,
            )
        rows = functional.embedding(input, weight, padding_idx, sparse=sparse)
        if mode == "max":
            return rows.max(1).values
        if is_weighted:
            rows = rows * per_sample_weights.unsqueeze(-1)
        if padding_idx is None:
            return rows.sum(1) if mode == "sum" else rows.mean(1)
        counts = (input != padding_idx % len(weight)).unsqueeze(-1)
        total = torch.where(counts, rows, 0.0).sum(1)
        return total if mode == "sum" else total / counts.sum(1).clamp(min=1)

    return embedding_bag
