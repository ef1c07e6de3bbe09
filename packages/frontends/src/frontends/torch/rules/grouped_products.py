"""Products of groups of rows with a matrix each, as experts are run by `functional.grouped_mm`.

PyTorch has an operator for it, `aten._grouped_mm`, that without values takes bfloat16 alone, and
only memory that is aligned as kernels of GPUs want it. A step calls `meshwright::grouped_mm`
instead, which takes whatever shard it gets, and multiplies group by group as PyTorch's does on a
CPU.
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
    """Of the slices of a dim that belong to each group, up to the group's end."""
    made = a.new_empty(_shape(a, b, ends))
    begin = 0
    for group, end in enumerate(ends.tolist()):
        if b.dim() == 3 and a.dim() == 2:
            torch.mm(a[begin:end], b[group], out=made[begin:end])
        elif a.dim() == 3:
            made[:, begin:end] = torch.mm(a[group], b[:, begin:end])
        else:
            torch.mm(a[:, begin:end], b[begin:end], out=made[group])
        begin = end
    if b.dim() == 3 or a.dim() == 3:
        made.narrow(0 if a.dim() == 2 else 1, begin, _size(a, b) - begin).zero_()
    return made


@torch.library.register_fake("meshwright::grouped_mm")  # type: ignore[untyped-decorator]
def _shaped(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    return a.new_empty(_shape(a, b, ends))


def _shape(a: Tensor, b: Tensor, ends: Tensor) -> tuple[int, ...]:
    """Rows of `a` by columns of `b`; for each group if it is what both sum over."""
    groups = ends.shape if a.dim() == b.dim() else ()
    return (*groups, a.shape[-2], b.shape[-1])


def _size(a: Tensor, b: Tensor) -> int:
    """Of the dim that is cut into groups, where the result has it."""
    return int(a.shape[0] if a.dim() == 2 else b.shape[1])


def grouped_mm(
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """How `aten._grouped_mm` is written; where every group has as much it is a `bmm`."""
    if bias is not None or out_dtype not in (None, a.dtype):
        return NotImplemented
    if offs is None:
        return torch.ops.aten.bmm(a, b)
    return torch.ops.meshwright.grouped_mm(a, b, offs)


def rule(d: Described) -> Rule:
    """As a product's; what is cut into groups stays whole, and so do the groups."""
    ranks = len(d.operands[0]), len(d.operands[1])
    formula, whole = {
        (2, 3): ("mk,gkn,g->mn", "mg"),
        (3, 2): ("gmk,kn,g->mn", "ng"),
        (2, 2): ("mk,kn,g->gmn", "kg"),
    }[ranks]
    return labelled(formula, d.operands, d.results, whole=whole, linear=((0,), (1,)))


def flops(d: Described) -> float:
    """Each row is multiplied once, with the matrix of its group."""
    (rows, summed), columns = d.operands[0][-2:], d.operands[1][-1]
    return 2.0 * rows * summed * columns
