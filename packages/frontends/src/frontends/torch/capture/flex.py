"""FlexAttention as operators with rules: a kernel with a mask, or products and a softmax.

PyTorch makes one operator of it, which only its compiler runs with gradients. Where nothing but a
mask is asked for, it is `scaled_dot_product_attention`: with `is_causal` if the mask is just that,
so that no mask is in memory, and else with the mask as a tensor. A function of the scores is
applied to all of them at once, as PyTorch does where it does not compile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.nn import functional
from torch.nn.attention import flex_attention as flex
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

Tensor = torch.Tensor

_TRIED = 2048
"""The most rows of which a mask is compared with a causal one [chosen]."""


@contextmanager
def flex_attention_as_operators() -> Iterator[None]:
    """Inside, FlexAttention calls operators that have rules, compiled or not."""
    with (
        mock.patch.object(flex, "flex_attention_hop", flex_attention),
        mock.patch.object(flex, "_validate_device", _on_one_device),
        mock.patch.object(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True),
    ):
        yield


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Any],
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: dict[str, Any],
) -> tuple[Tensor, Tensor, Tensor]:
    """What PyTorch's operator of this name returns.

    Args:
        query: Shape `(b, h, t, d)`.
        key: Shape `(b, g, s, d)`; g divides h. Shape `(1, g, s, d)` serves all examples.
        value: Shape `(b, g, s, e)`.
        score_mod: Maps a score and its four indices to another score.
        block_mask: As `BlockMask.as_tuple` returns it. Only its function of indices is read: all
            else says which blocks a kernel may skip.
        scale: Multiplies the scores.
        kernel_options: Which kernels to use, and whether sums and maxima are asked for.

    Returns:
        The result; and the logarithms to base 2 of the sums, and the maxima divided by log 2, or
        empty tensors if they are not asked for.
    """
    kind = query.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        query, key, value = (x.to(dtype) for x in (query, key, value))
    if key.shape[0] != query.shape[0]:
        key, value = (x.expand(query.shape[0], *x.shape[1:]) for x in (key, value))
    mask_mod, n_masks = block_mask[-1], block_mask[2].shape[:2]
    n_rows, n_keys = query.shape[2], key.shape[2]
    groups = query.shape[1] // key.shape[1]
    with torch.autocast(kind, enabled=False):
        seen = None
        if mask_mod is not flex.noop_mask:
            seen, used = _indexed(mask_mod, (*n_masks, n_rows, n_keys), query.device)
            # One that was made for all examples or heads at once may still look at their number.
            every = [query.shape[d] if d in used else n for d, n in enumerate(n_masks)]
            if every != [*n_masks]:
                seen, _ = _indexed(mask_mod, (*every, n_rows, n_keys), query.device)
        only_masked = score_mod is flex._identity
        asked = [kernel_options.get(f"OUTPUT_{name}", False) for name in ("LOGSUMEXP", "MAX")]
        scores = _scores(query, key.repeat_interleave(groups, 1), scale)
        if not only_masked:
            scores, _ = _indexed(score_mod, tuple(scores.shape), query.device, scores)
        if seen is not None:
            scores = scores.masked_fill(~seen, -torch.inf)
        sums = scores.logsumexp(-1) / math.log(2) if asked[0] else query.new_empty(0)
        maxima = scores.amax(-1) / math.log(2) if asked[1] else query.new_empty(0)
        if only_masked:  # then the scores above are read for sums and maxima only, if at all
            is_causal = n_rows == n_keys and is_causal_mask(mask_mod, n_rows)
            result = functional.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=None if is_causal else seen,
                is_causal=is_causal,
                scale=scale,
                enable_gqa=groups > 1,
            )
            return result, sums, maxima
        is_empty = (scores == -torch.inf).all(-1, keepdim=True)  # a row that sees nothing is zero
        weights = scores.masked_fill(is_empty, 0.0).softmax(-1).masked_fill(is_empty, 0.0)
        return weights.to(query.dtype) @ value.repeat_interleave(groups, 1), sums, maxima


def is_causal_mask(mask_mod: Callable[..., Any], n: int) -> bool:
    """Whether a mask is just that a row sees the keys up to its own.

    Only a function that reads nothing but its arguments, not even a number, can be recognised: it
    is the same at every call, and a comparison of its arguments that is right for the first
    `_TRIED` rows is right for all.

    Args:
        mask_mod: Maps the indices of an example, a head, a row and a key to whether it is seen.
        n: The number of rows, and of keys.

    Examples:
        >>> is_causal_mask(lambda b, h, q, kv: q >= kv, 64)
        True
        >>> is_causal_mask(lambda b, h, q, kv: (q >= kv) & (q - kv < 9), 64)
        False
    """
    code = getattr(mask_mod, "__code__", None)
    if not isinstance(code, CodeType) or code.co_freevars or code.co_names:
        return False
    if mask_mod.__defaults__ or mask_mod.__kwdefaults__:
        return False
    if any(constant is not None and not isinstance(constant, str) for constant in code.co_consts):
        return False
    index = np.arange(min(n, _TRIED))
    row, column = index[:, None], index[None]
    try:
        each = [
            np.broadcast_to(mask_mod(b, h, row, column), (len(index), len(index)))
            for b, h in ((0, 0), (0, 1), (1, 0), (2, 3), (n, 0), (0, n))
        ]
    except Exception:  # a function that is made for tensors may do anything with arrays
        return False
    return all(seen.dtype == bool and bool((seen == (column <= row)).all()) for seen in each)


def _on_one_device(query: Tensor, key: Tensor, value: Tensor) -> None:
    """PyTorch's check, but for kinds of devices: operators run on all of them."""
    if not query.device == key.device == value.device:
        raise ValueError(
            "Expected query, key, and value to have the same device type, but got query.device: "
            f"{query.device}, key.device: {key.device}, and value.device: {value.device} instead."
        )


def _scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """The scores, in float32 at least."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    return (query.to(dtype) @ key.to(dtype).transpose(-2, -1)) * scale


def _indexed(
    function: Callable[..., Any], sizes: tuple[int, ...], device: torch.device, *scores: Tensor
) -> tuple[Tensor, set[int]]:
    """What a function of indices, after scores if there are any, makes of all of them.

    Returns:
        It, and which of the four indices the function looks at.
    """
    looking = _Looking()

    def looked(*arguments: Any) -> Any:
        looking.indices = arguments[-4:]
        return function(*arguments)

    vectorized = flex._vmap_for_bhqkv(looked, prefix=(0,) * len(scores))
    indices = [torch.arange(size, device=device) for size in sizes]
    with looking:
        made: Tensor = vectorized(*scores, *indices)
    return made, looking.used


class _Looking(TorchFunctionMode):
    """Makes `table[head]` a call of `index`, as Python asks for the number of a single index."""

    def __init__(self) -> None:
        super().__init__()
        self.indices: tuple[Any, ...] = ()
        self.used = set[int]()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        leaves = pytree.tree_leaves((args, kwargs))
        self.used.update(
            d for d, index in enumerate(self.indices) if any(leaf is index for leaf in leaves)
        )
        if function is Tensor.__getitem__:
            table, index = args
            parts = index if isinstance(index, tuple) else (index,)
            if all(isinstance(part, Tensor | int) for part in parts):
                each = [
                    part if isinstance(part, Tensor) else torch.full((), part, device=table.device)
                    for part in parts
                ]
                return torch.ops.aten.index(table, each)
        return function(*args, **(kwargs or {}))
