"""Products of each group of rows with its matrix, as `functional.grouped_mm` runs experts.

PyTorch's operator for this, `aten._grouped_mm`, accepts on stand-ins only bfloat16, and only memory
that is aligned for kernels of GPUs. A step calls `meshwright::grouped_mm` instead, which accepts
any shard, and multiplies group by group as PyTorch's operator does on a CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from autoshard import Rule, labelled

from frontends.torch.base.described import Described

Tensor = torch.Tensor

torch.library.define("meshwright::grouped_mm", "(Tensor a, Tensor b, Tensor ends) -> Tensor")


@torch.library.impl("meshwright::grouped_mm", "CompositeExplicitAutograd")
def _multiplied(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """Multiply the slices of a dim that belong to each group; `ends` are the groups' ends."""
    products = a.new_empty(_shape(a, b, ends))
    begin = 0
    for group, end in enumerate(ends.tolist()):
        if b.dim() == 3 and a.dim() == 2:
            torch.mm(a[begin:end], b[group], out=products[begin:end])
        elif a.dim() == 3:
            products[:, begin:end] = torch.mm(a[group], b[:, begin:end])
        else:
            torch.mm(a[:, begin:end], b[begin:end], out=products[group])
        begin = end
    if b.dim() == 3 or a.dim() == 3:
        products.narrow(0 if a.dim() == 2 else 1, begin, _size(a, b) - begin).zero_()
    return products


@torch.library.register_fake("meshwright::grouped_mm")  # type: ignore[untyped-decorator]
def _shaped(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    return a.new_empty(_shape(a, b, ends))


def _shape(a: Tensor, b: Tensor, ends: Tensor) -> tuple[int, ...]:
    """Return the shape: rows of `a` by columns of `b`; one for each group if `k` is grouped."""
    groups = ends.shape if a.dim() == b.dim() else ()
    return (*groups, a.shape[-2], b.shape[-1])


def _size(a: Tensor, b: Tensor) -> int:
    """Return the size of the grouped dim, if the result has this dim."""
    return int(a.shape[0] if a.dim() == 2 else b.shape[1])


def grouped_mm(
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """Decomposition of `aten._grouped_mm`; if all groups have the same size it is a `bmm`."""
    if bias is not None or out_dtype not in (None, a.dtype):
        return NotImplemented
    if offs is None:
        return torch.ops.aten.bmm(a, b)
    return torch.ops.meshwright.grouped_mm(a, b, offs)


def rule(d: Described) -> Rule:
    """Return the rule of a matrix product in which the grouped dim and the groups stay whole."""
    ranks = len(d.operands[0]), len(d.operands[1])
    formula, whole = {
        (2, 3): ("mk,gkn,g->mn", "mg"),
        (3, 2): ("gmk,kn,g->mn", "ng"),
        (2, 2): ("mk,kn,g->gmn", "kg"),
    }[ranks]
    return labelled(formula, d.operands, d.results, whole=whole, linear=((0,), (1,)))


def flops(d: Described) -> float:
    """Return the FLOP: each row is multiplied once, with the matrix of its group."""
    (rows, summed), columns = d.operands[0][-2:], d.operands[1][-1]
    return 2.0 * rows * summed * columns
