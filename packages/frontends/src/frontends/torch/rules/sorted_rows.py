"""Operators on rows that each example sorts by itself, which `frontends.torch.trace.sort` adds.

The first dim of all of them is that of the examples, so that these can be split. Without a split,
rows of all examples that belong to one group are multiplied at once.
"""

from __future__ import annotations

import torch
from autoshard import Rule, labelled

from frontends.torch.base.described import Described, letters

Tensor = torch.Tensor

_GROUPS = "Tensor begins, Tensor ends"

torch.library.define("meshwright::take_rows", "(Tensor x, Tensor places) -> Tensor")
torch.library.define("meshwright::add_rows", "(Tensor places, Tensor values, int rows) -> Tensor")
torch.library.define(
    "meshwright::count_rows", "(Tensor x, int bins, Scalar min, Scalar max) -> Tensor"
)
torch.library.define("meshwright::multiply_rows", f"(Tensor a, Tensor b, {_GROUPS}) -> Tensor")
torch.library.define("meshwright::multiply_groups", f"(Tensor a, Tensor b, {_GROUPS}) -> Tensor")


@torch.library.impl("meshwright::take_rows", "CompositeExplicitAutograd")
def _take_rows(x: Tensor, places: Tensor) -> Tensor:
    """Read rows of each example: `x` is (examples, rows, ...), `places` (examples, places)."""
    taken = x.flatten(0, 1).index_select(0, _in_all(places, x.shape[1]))
    return taken.view(*places.shape, *x.shape[2:])


@torch.library.impl("meshwright::add_rows", "CompositeExplicitAutograd")
def _add_rows(places: Tensor, values: Tensor, rows: int) -> Tensor:
    """Add values to zeros at rows of each example: the gradient of `take_rows`."""
    total = values.new_zeros((len(places) * rows, *values.shape[2:]))
    total.index_add_(0, _in_all(places, rows), values.flatten(0, 1))
    return total.view(len(places), rows, *values.shape[2:])


def _in_all(places: Tensor, rows: int) -> Tensor:
    """Return places in the rows of each example as places in those of all."""
    first = torch.arange(len(places), device=places.device) * rows
    return (places + first[:, None]).flatten()


@torch.library.impl("meshwright::count_rows", "CompositeExplicitAutograd")
def _count_rows(x: Tensor, bins: int, low: float, high: float) -> Tensor:
    """Return the histogram of each example."""
    return torch.stack([torch.histc(row, bins, low, high) for row in x])


class _Groups:
    """The rows of each group in all examples.

    Args:
        begins: Where each group begins in the rows of an example, of shape (examples, groups).
        ends: Where it ends. Groups are in order; rows may belong to none.
        rows: How many rows an example has.
    """

    def __init__(self, begins: Tensor, ends: Tensor, rows: int) -> None:
        examples, groups = ends.shape
        self.order: Tensor | None = None
        """The rows by group; None if they are in this order."""

        if examples == 1:
            self.spans = list(zip(begins[0].tolist(), ends[0].tolist(), strict=True))
            return
        places = torch.arange(rows, device=ends.device, dtype=ends.dtype)
        group = torch.searchsorted(ends.contiguous(), places.repeat(examples, 1), right=True)
        first = begins.gather(1, group.clamp(max=groups - 1))
        group = group.where(first <= places, groups).flatten()
        self.order = group.argsort(stable=True)
        after = torch.bincount(group, minlength=groups + 1).cumsum(0)[:groups].tolist()
        self.spans = list(zip([0, *after[:-1]], after, strict=True))

    def sorted(self, x: Tensor) -> Tensor:
        """Return rows, of shape (examples, rows, n), as a matrix with those of a group adjacent."""
        matrix = x.flatten(0, 1)
        return matrix if self.order is None else matrix[self.order]

    def unsorted(self, matrix: Tensor) -> Tensor:
        """Return the rows of a matrix in the order of the examples."""
        if self.order is None:
            return matrix
        return torch.empty_like(matrix).index_copy_(0, self.order, matrix)


@torch.library.impl("meshwright::multiply_rows", "CompositeExplicitAutograd")
def _multiply_rows(a: Tensor, b: Tensor, begins: Tensor, ends: Tensor) -> Tensor:
    """Multiply each row with the matrix of its group; rows without a group yield zeros."""
    groups = _Groups(begins, ends, a.shape[1])
    rows = groups.sorted(a)
    products = rows.new_zeros(len(rows), b.shape[2])
    for matrix, (begin, end) in zip(b, groups.spans, strict=True):
        torch.mm(rows[begin:end], matrix, out=products[begin:end])
    return groups.unsorted(products).view(*a.shape[:2], b.shape[2])


@torch.library.impl("meshwright::multiply_groups", "CompositeExplicitAutograd")
def _multiply_groups(a: Tensor, b: Tensor, begins: Tensor, ends: Tensor) -> Tensor:
    """Return, for each group, the product of its rows of `a`, transposed, and its rows of `b`."""
    groups = _Groups(begins, ends, a.shape[1])
    left, right = groups.sorted(a), groups.sorted(b)
    products = left.new_empty(len(groups.spans), a.shape[2], b.shape[2])
    for product, (begin, end) in zip(products, groups.spans, strict=True):
        torch.mm(left[begin:end].t(), right[begin:end], out=product)
    return products


@torch.library.register_fake("meshwright::take_rows")  # type: ignore[untyped-decorator]
def _shape_of_taken(x: Tensor, places: Tensor) -> Tensor:
    return x.new_empty(*places.shape, *x.shape[2:])


@torch.library.register_fake("meshwright::add_rows")  # type: ignore[untyped-decorator]
def _shape_of_added(places: Tensor, values: Tensor, rows: int) -> Tensor:
    return values.new_empty(len(places), rows, *values.shape[2:])


@torch.library.register_fake("meshwright::count_rows")  # type: ignore[untyped-decorator]
def _shape_of_counts(x: Tensor, bins: int, low: float, high: float) -> Tensor:
    return x.new_empty(len(x), bins)


@torch.library.register_fake("meshwright::multiply_rows")  # type: ignore[untyped-decorator]
def _shape_of_rows(a: Tensor, b: Tensor, begins: Tensor, ends: Tensor) -> Tensor:
    return a.new_empty(*a.shape[:2], b.shape[2])


@torch.library.register_fake("meshwright::multiply_groups")  # type: ignore[untyped-decorator]
def _shape_of_groups(a: Tensor, b: Tensor, begins: Tensor, ends: Tensor) -> Tensor:
    return a.new_empty(ends.shape[1], a.shape[2], b.shape[2])


def taken(d: Described) -> Rule:
    """Return the rule of `take_rows`."""
    rest = letters(len(d.operands[0]) - 2, "bmn")
    formula = f"bm{rest},bn->bn{rest}"
    return labelled(formula, d.operands, d.results, whole="mn", linear=((0,),))


def added(d: Described) -> Rule:
    """Return the rule of `add_rows`."""
    rest = letters(len(d.operands[1]) - 2, "bmn")
    formula = f"bn,bn{rest}->bm{rest}"
    return labelled(formula, d.operands, d.results, whole="mn", linear=((1,),))


def counted(d: Described) -> Rule:
    """Return the rule of `count_rows`."""
    return labelled("bn->be", d.operands, d.results, whole="ne")
