"""Decompositions of operators into others, which are applied before anything is planned.

Such an operator contains a mean, a bias or a choice, and can be sharded in more ways in pieces: a
mean divides by the number of all elements, not of a shard's; a bias is added once, after the sum
over devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import get_decompositions

from frontends.torch.rules.ctc import ctc, ctc_gradient
from frontends.torch.rules.grouped_products import grouped_mm

aten = torch.ops.aten
Tensor = torch.Tensor
_SHORT = (torch.bfloat16, torch.float16)


def _dims(x: Tensor, dim: Any) -> list[int]:
    if dim is None or dim == []:
        return list(range(x.dim()))
    return [d % x.dim() if x.dim() else 0 for d in ([dim] if isinstance(dim, int) else dim)]


def _mean(
    x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    dims = _dims(x, dim)
    total = aten.sum.dim_IntList(x, dims, keepdim, dtype=dtype)
    return total / math.prod(x.shape[d] for d in dims)


def _mean_of_all(x: Tensor, *, dtype: torch.dtype | None = None) -> Any:
    return _mean(x, dtype=dtype)


def _sum_of_all(x: Tensor, *, dtype: torch.dtype | None = None) -> Any:
    return aten.sum.dim_IntList(x, list(range(x.dim())), dtype=dtype)


def _addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    return _weighted(aten.mm, bias, a, b, beta, alpha)


def _baddbmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    return _weighted(aten.bmm, bias, a, b, beta, alpha)


def _weighted(
    multiply: Any, bias: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float
) -> Tensor:
    """Multiply and add, rounding once like the operator: short types are computed in float32."""
    is_short = a.dtype in _SHORT
    if not is_short or (alpha == 1 and beta == 1):
        return _added(multiply(a, b), bias, beta, alpha)
    return _added(multiply(a.float(), b.float()), bias.float(), beta, alpha).to(a.dtype)


def _added(product: Tensor, bias: Tensor, beta: float, alpha: float) -> Tensor:
    if alpha != 1:
        product = product * alpha
    if beta == 0:
        return product
    return product + (bias if beta == 1 else bias * beta)


def _vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    if dtype is not None:
        x = x.to(dtype)
    if x.dtype in _SHORT:  # round once, like the operator
        norm = _vector_norm(x.float(), ord, dim, keepdim)
        return norm if norm is NotImplemented else norm.to(x.dtype)
    dims = _dims(x, dim)
    if ord == math.inf:
        return aten.amax(x.abs(), dims, keepdim)
    if ord == 2:
        return aten.sum.dim_IntList(x * x, dims, keepdim).sqrt()
    if ord == 1:
        return aten.sum.dim_IntList(x.abs(), dims, keepdim)
    return NotImplemented


def _var(
    x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> Any:
    return _var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def _var_mean(
    x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Any, Any]:
    dims = _dims(x, dim)
    n = math.prod(x.shape[d] for d in dims)
    mean = _mean(x, dims, True)
    centred = x - mean
    total = aten.sum.dim_IntList(centred * centred, dims, keepdim)
    variance = total / max(0.0, n - (1 if correction is None else correction))
    return variance, mean if keepdim else mean.squeeze(dims)


def _convolution_backward(
    gradient: Tensor,
    data: Tensor,
    kernel: Tensor,
    bias_sizes: Sequence[int] | None,
    *settings: Any,
) -> Any:
    """Compute the three gradients one by one, as they sum over different dims."""
    *rest, mask = settings
    if sum(mask) == 1 and not mask[2]:
        return NotImplemented
    alone = [
        aten.convolution_backward(gradient, data, kernel, None, *rest, [k == 0, k == 1, False])[k]
        if mask[k]
        else None
        for k in range(2)
    ]
    over = [d for d in range(gradient.dim()) if d != 1]
    return (*alone, aten.sum.dim_IntList(gradient, over) if mask[2] else None)


def _convolution(data: Tensor, kernel: Tensor, bias: Tensor | None, *settings: Any) -> Any:
    if bias is None:
        return NotImplemented
    result = aten.convolution(data, kernel, None, *settings)
    return result + bias.reshape(-1, *[1] * (result.dim() - 2))


def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Any:
    """Compute it in pieces, so that the dim can be split: a vocabulary is long."""
    if half_to_float:
        x = x.float()
    shifted = x - aten.amax(x, [dim], True)
    return shifted - aten.sum.dim_IntList(shifted.exp(), [dim], True).log()


def _log_softmax_gradient(
    gradient: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype
) -> Any:
    total = aten.sum.dim_IntList(gradient, [dim], True)
    return (gradient - output.exp() * total).to(input_dtype)


def _repeat(x: Tensor, repeats: Sequence[int]) -> Tensor:
    """Repeat into a contiguous tensor, like the operator, unlike torch's decomposition."""
    shape = [1] * (len(repeats) - x.dim()) + list(x.shape)
    apart = x.reshape([size for n in shape for size in (1, n)])
    wide = apart.expand([size for pair in zip(repeats, shape, strict=True) for size in pair])
    whole = wide.clone(memory_format=torch.contiguous_format)
    return whole.view([n * size for n, size in zip(repeats, shape, strict=True)])


def _stack(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    """Concatenate along the new dim; torch's decomposition mixes it with another one."""
    dim %= tensors[0].dim() + 1
    return aten.cat([tensor.unsqueeze(dim) for tensor in tensors], dim)


def _unscale(gradients: Sequence[Tensor], found: Tensor, inverse: Tensor) -> None:
    """Multiply gradients, and set `found` if one of their numbers is not finite."""
    for gradient in gradients:
        infinite = aten.logical_not(aten.all(aten.isfinite(gradient)))
        found.copy_(aten.maximum(found, infinite.to(found.dtype)))
        gradient.mul_(inverse.to(gradient.dtype))


def _update_scale(
    scale: Tensor, n_good: Tensor, found: Tensor, growth: float, backoff: float, interval: int
) -> Tensor:
    """Let the scale grow after `interval` steps with finite gradients; reduce it after another."""
    is_bad, grown = found > 0, scale * growth
    is_due = (n_good + 1) == interval
    better = aten.where(is_due & aten.isfinite(grown), grown, scale)
    scale.copy_(aten.where(is_bad, scale * backoff, better))
    n_good.copy_(aten.where(is_bad | is_due, aten.zeros_like(n_good), n_good + 1))
    return scale


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    **get_decompositions(
        [
            aten.nll_loss_forward,
            aten.nll_loss_backward,
            aten.nll_loss2d_forward,
            aten.nll_loss2d_backward,
            aten.mse_loss,
            aten.mse_loss_backward,
            aten.binary_cross_entropy,
            aten.binary_cross_entropy_backward,
            aten.binary_cross_entropy_with_logits,
            aten.smooth_l1_loss,
            aten.smooth_l1_loss_backward,
            aten.huber_loss,
            aten.huber_loss_backward,
            aten.native_batch_norm,
            aten._native_batch_norm_legit,
            aten._native_batch_norm_legit_functional,
            aten.native_batch_norm_backward,
            aten.addmv,
            aten.mv,
            aten.dot,
            aten.std.correction,
            aten.logsumexp,
            aten.norm,
        ]
    ),
    aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
    aten._amp_update_scale_.default: _update_scale,
    aten._is_all_true.default: lambda x: aten.all(x),
    aten._is_any_true.default: lambda x: aten.any(x),
    aten.mean.dim: _mean,
    aten.mean.default: _mean_of_all,
    aten.sum.default: _sum_of_all,
    aten.repeat.default: _repeat,
    aten.stack.default: _stack,
    aten.addmm.default: _addmm,
    aten.baddbmm.default: _baddbmm,
    aten._grouped_mm.default: grouped_mm,
    **dict.fromkeys((aten._ctc_loss.default, aten._ctc_loss.Tensor), ctc),
    **dict.fromkeys(
        (aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor), ctc_gradient
    ),
    aten.linalg_vector_norm.default: _vector_norm,
    aten.var.correction: _var,
    aten.var_mean.correction: _var_mean,
    aten.convolution.default: _convolution,
    aten._log_softmax.default: _log_softmax,
    aten._log_softmax_backward_data.default: _log_softmax_gradient,
    aten.convolution_backward.default: _convolution_backward,
}
"""By operator, its decomposition; one that returns `NotImplemented` leaves the operator alone."""
