"""Causal attention of a device that has some rows of a sequence, and all or some of its keys.

The rows of a device see all keys before its first row, and its own under a causal mask. These are
two calls of the same kernel, neither of which computes a masked score or needs a mask in memory.
Their results are put together by the sums that each returns; backward, each call gets the sums of
both, so its gradients are parts of the whole's (FlashAttention 2, Dao 2023, section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from frontends.torch.base.calls import Call, Tensor

_ROWS, _KEYS = 2, 2
"""The dims of rows in queries `(b, h, t, d)`, and of keys in keys and values `(b, g, s, d)`."""


def is_by_row(call: Call) -> bool:
    """Whether the call is of attention in which the number of a row decides what it sees."""
    return call.name in BY_ROW and bool(call.argument("is_causal"))


def is_balanced(call: Call, rows: int, keys: int) -> bool:
    """Whether devices that share the rows exchange halves of their heads, to have as much work."""
    return call.argument("is_causal") and call.argument("attn_mask") is None and rows <= keys


def _forward(call: Call, operands: Sequence[Tensor], first_row: int) -> list[Tensor]:
    queries, keys, values = operands
    n_before, n_own = _sizes(queries, keys, first_row)
    if not n_before and not n_own:
        result = queries.new_zeros((*queries.shape[:-1], values.shape[-1]))
        dtype = torch.promote_types(queries.dtype, torch.float32)
        return [result, queries.new_full(queries.shape[:-1], -torch.inf, dtype=dtype)]
    parts = []
    if n_before:
        before = [array.narrow(_KEYS, 0, n_before) for array in (keys, values)]
        parts.append(call.replace(is_causal=False)([queries, *before]))
    if n_own:
        own = [array.narrow(_KEYS, n_before, n_own) for array in (keys, values)]
        parts.append(call([queries, *own]))
    if len(parts) == 1:
        return parts[0]
    (result, logs), (other, other_logs) = parts
    total = torch.logaddexp(logs, other_logs)
    shares = [(part - total).exp()[..., None] for part in (logs, other_logs)]
    together = result * shares[0] + other * shares[1]
    return [together.to(result.dtype), total]


def _backward(call: Call, operands: Sequence[Tensor], first_row: int) -> list[Tensor]:
    gradient, queries, keys, values, result, logs = operands
    n_before, n_own = _sizes(queries, keys, first_row)
    of_queries, of_keys, of_values = map(torch.zeros_like, (queries, keys, values))
    for start, n, is_causal in ((0, n_before, False), (n_before, n_own, True)):
        if not n:
            continue
        part = [array.narrow(_KEYS, start, n) for array in (keys, values)]
        made = call.replace(is_causal=is_causal)([gradient, queries, *part, result, logs])
        of_queries += made[0]
        of_keys.narrow(_KEYS, start, n).copy_(made[1])
        of_values.narrow(_KEYS, start, n).copy_(made[2])
    return [of_queries, of_keys, of_values]


def _sizes(queries: Tensor, keys: Tensor, first_row: int) -> tuple[int, int]:
    """How many keys all rows see, and how many lie between the first and the last row.

    Both are 0 if the first key comes after the last row, as for some parts of a ring.
    """
    if first_row < 0:
        return 0, 0
    n_before = min(first_row, keys.shape[_KEYS])
    return n_before, min(queries.shape[_ROWS], keys.shape[_KEYS] - n_before)


BY_ROW: dict[str, Callable[[Call, Sequence[Tensor], int], list[Tensor]]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _forward,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _backward,
}
"""By operator, how to run it on rows that begin at some number."""
