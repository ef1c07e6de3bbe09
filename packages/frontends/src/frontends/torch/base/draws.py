"""Random draws that depend on tensors, rewritten as plain draws and arithmetic on these.

Random numbers are drawn before a step runs, so that they equal those of one device; a draw with
computed probabilities or means cannot be. Torch itself computes such draws from plain ones. The
functions here do the same with PyTorch operators, in torch's order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

Tensor = torch.Tensor
aten = torch.ops.aten


def _normal(mean: Any, std: Any) -> Tensor:
    like: Tensor = mean + std
    drawn = torch.empty_like(like, memory_format=torch.contiguous_format).normal_()
    scaled: Tensor = drawn * std + mean
    return scaled


def _bernoulli(probabilities: Tensor) -> Tensor:
    drawn = torch.rand_like(probabilities, memory_format=torch.contiguous_format)
    return (drawn < probabilities).to(probabilities.dtype)


def _multinomial(weights: Tensor, num_samples: int, replacement: bool = False) -> Tensor:
    quotients = weights / torch.empty_like(weights).exponential_(1)
    if num_samples == 1:
        return quotients.argmax(-1, keepdim=True)
    return quotients.topk(num_samples)[1]


def plain_draw(
    function: Any, args: tuple[Any, ...], named: Mapping[str, Any]
) -> Callable[[], Tensor] | None:
    """Return a function that makes the same draw from plain draws; None to leave the call alone."""
    if named.get("generator") is not None:
        return None
    rest = {key: value for key, value in named.items() if key != "generator"}
    if function is aten.multinomial.default:
        replacement = args[2] if len(args) > 2 else rest.get("replacement", False)
        if replacement and (args[1] if len(args) > 1 else rest["num_samples"]) != 1:
            return None
    if function is aten.bernoulli_.Tensor and not args[0].is_contiguous():
        return None
    written = _WRITTEN.get(function)
    return None if written is None else lambda: written(*args, **rest)


_WRITTEN: dict[Any, Callable[..., Tensor]] = {
    aten.normal.Tensor_Tensor: _normal,
    aten.normal.Tensor_float: lambda mean, std=1.0: _normal(mean, std),
    aten.normal.float_Tensor: _normal,
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli_.Tensor: lambda x, p: x.copy_(_bernoulli(p.expand_as(x).to(x.dtype))),
    aten.multinomial.default: _multinomial,
}
