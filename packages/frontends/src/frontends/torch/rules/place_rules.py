"""Rules of operators that read or write at positions: indices, slices, one element of a dim."""

from __future__ import annotations

import math

import autoshard
import torch
from autoshard import Rule, labelled

from frontends.torch.base.calls import Operand
from frontends.torch.base.described import Described, letters

_MASKS = (torch.bool, torch.uint8)
"""Types of masks, which stand for as many indices as they have true elements."""


def embedding(d: Described) -> Rule:
    """Return the rule of an embedding.

    Rows of the table can be split if the call is masked: a device then yields zeros for the rows
    that it does not have.
    """
    word = letters(len(d.operands[1]), "dv")
    whole = "" if d.masked else "v"
    return labelled(f"vd,{word}->{word}d", d.operands, d.results, whole=whole, linear=((0,),))


def embedding_gradient(d: Described) -> Rule:
    """Return the rule of the gradient of an embedding's table; a device adds up its own rows."""
    if d.call.argument("scale_grad_by_freq"):
        return autoshard.whole(d.operands, d.results)
    word = letters(len(d.operands[1]), "dv")
    whole = "" if d.masked else "v"
    return labelled(f"{word}d,{word}->vd", d.operands, d.results, whole=whole, linear=((0,),))


def histogram(d: Described) -> Rule:
    """Return the rule of `histc`: counts of parts add up, unless the data decides the bounds."""
    if d.call.argument("min") == d.call.argument("max"):
        return autoshard.whole(d.operands, d.results)
    word = letters(len(d.operands[0]), "e")
    return labelled(f"{word}->e", d.operands, d.results, whole="e")


def gather(d: Described) -> Rule:
    """Return the rule of `gather`; the indexed dim can be split like an embedding's rows."""
    source, places = d.operands
    dim = d.dim()
    if not _same_but(dim, source, places):
        return autoshard.whole(d.operands, d.results)
    names = letters(len(source), "vk")
    read, result = _with(names, dim, "v"), _with(names, dim, "k")
    whole = "k" if d.masked else "vk"
    formula = f"{read},{result}->{result}"
    return labelled(formula, d.operands, d.results, whole=whole, linear=((0,),))


def scatter(d: Described) -> Rule:
    """Return the rule to write or add elements at indices along a dim; masked, it can be split."""
    target = d.operands[0]
    dim = d.dim()
    if d.place("self") != 0 or not all(_same_but(dim, target, s) for s in d.operands[1:]):
        return autoshard.whole(d.operands, d.results)
    names = letters(len(target), "vk")
    kept, written = _with(names, dim, "v"), _with(names, dim, "k")
    words = ",".join((kept, *[written] * (len(d.operands) - 1)))
    linear = ((0, 2),) if len(d.operands) == 3 else ()
    whole = "k" if d.masked else "vk"
    return labelled(f"{words}->{kept}", d.operands, d.results, whole=whole, linear=linear)


def index(d: Described) -> Rule:
    """Return the rule to read elements at indices of some dims; the indexed dims stay whole.

    In the result, the dims of the indices are at the position of the first indexed dim if the
    indexed dims are adjacent; otherwise they come first. The other dims follow in their order.
    """
    places = d.call.argument("indices")
    source = d.operands[0]
    indexed = [dim for dim, item in enumerate(places) if isinstance(item, Operand)]
    if any(t.is_floating_point or t in _MASKS for t in d.operand_dtypes[1:]):
        return autoshard.whole(d.operands, d.results)
    names, result, words = _indexed(source, d.operands[1:], indexed)
    formula = ",".join((names, *words)) + f"->{result}"
    whole = "".join(names[dim] for dim in indexed)
    return labelled(formula, d.operands, d.results, whole=whole, linear=((0,),))


def index_put(d: Described) -> Rule:
    """Return the rule to write or add elements at indices of some dims.

    If they are added, elements can be split: each device adds its own.
    """
    places = d.call.argument("indices")
    target, values = d.operands[0], d.operands[-1]
    indexed = [dim for dim, item in enumerate(places) if isinstance(item, Operand)]
    if any(t in _MASKS for t in d.operand_dtypes[1:-1]):
        return autoshard.whole(d.operands, d.results)
    names, written, words = _indexed(target, d.operands[1:-1], indexed)
    if len(values) != len(written):
        return autoshard.whole(d.operands, d.results)
    adds = bool(d.call.argument("accumulate"))
    formula = ",".join((names, *words, written)) + f"->{names}"
    whole = "".join(names[dim] for dim in indexed)
    if not adds:
        whole += "".join(set("".join(words)))
    last = len(d.operands) - 1
    return labelled(
        formula, d.operands, d.results, whole=whole, linear=((0, last),) if adds else ()
    )


def _indexed(
    source: tuple[int, ...], indices: tuple[tuple[int, ...], ...], indexed: list[int]
) -> tuple[str, str, list[str]]:
    """Return the letters of the indexed tensor, of the result, and of each index."""
    names = letters(len(source))
    rank = max(map(len, indices))
    outer = letters(rank, names)
    words = [outer[rank - len(shape) :] for shape in indices]
    kept = [names[dim] for dim in range(len(source)) if dim not in indexed]
    is_run = indexed == list(range(indexed[0], indexed[0] + len(indexed)))
    first = indexed[0] if is_run else 0
    return names, "".join((*kept[:first], outer, *kept[first:])), words


def index_select(d: Described) -> Rule:
    """Return the rule to select slices along a dim, which stays whole."""
    names = letters(len(d.operands[0]), "k")
    dim = d.dim()
    formula = f"{names},k->{_with(names, dim, 'k')}"
    return labelled(formula, d.operands, d.results, whole=names[dim], linear=((0,),))


def index_add(d: Described) -> Rule:
    """Return the rule to add slices at indices along a dim, which stays whole.

    The slices can be split: each device adds its own.
    """
    names = letters(len(d.operands[0]), "k")
    dim = d.dim()
    formula = f"{names},k,{_with(names, dim, 'k')}->{names}"
    return labelled(formula, d.operands, d.results, whole=names[dim], linear=((0, 2),))


def extreme(d: Described) -> Rule:
    """Return the rule of a maximum, minimum or other order statistic.

    It is elementwise between two tensors, along a dim with indices, or over all dims.
    """
    if len(d.operands) == 2:
        return autoshard.elementwise(d.operands, d.results[0])
    return autoshard.rule_of("reduce", d.operands, d.results, dims=d.dims())


def select_gradient(d: Described) -> Rule:
    """Return the rule to place one slice at its index of a dim of zeros."""
    names = letters(len(d.results[0]))
    dim = d.dim(rank=len(names))
    formula = f"{_with(names, dim, '')}->{names}"
    return labelled(formula, d.operands, d.results, whole=names[dim], linear=((0,),))


def slice_scatter(d: Described) -> Rule:
    """Return the rule to replace a range of a dim."""
    names = letters(len(d.results[0]), "k")
    dim = d.dim()
    formula = f"{names},{_with(names, dim, 'k')}->{names}"
    return labelled(formula, d.operands, d.results, whole=names[dim] + "k", linear=((0, 1),))


def select_scatter(d: Described) -> Rule:
    """Return the rule to replace one slice of a dim."""
    names = letters(len(d.results[0]))
    dim = d.dim()
    formula = f"{names},{_with(names, dim, '')}->{names}"
    return labelled(formula, d.operands, d.results, whole=names[dim], linear=((0, 1),))


def strided(d: Described) -> Rule:
    """Return the rule of a view by strides, such as overlapping windows, of each row by itself."""
    x, view = d.operands[0], d.results[0]
    if not _by_rows(d, x, view):
        return autoshard.whole(d.operands, d.results)
    row = letters(len(x) - 1, "n")
    of_view = letters(len(view) - 1, "n" + row)
    formula = f"n{row}->n{of_view}"
    return labelled(formula, d.operands, d.results, whole=row + of_view, linear=((0,),))


def strided_scatter(d: Described) -> Rule:
    """Return the rule to write to a view by strides of each row."""
    x, view = d.operands
    if not _by_rows(d, x, view):
        return autoshard.whole(d.operands, d.results)
    row = letters(len(x) - 1, "n")
    of_view = letters(len(view) - 1, "n" + row)
    formula = f"n{row},n{of_view}->n{row}"
    return labelled(formula, d.operands, d.results, whole=row + of_view, linear=((0, 1),))


def _by_rows(d: Described, x: tuple[int, ...], view: tuple[int, ...]) -> bool:
    """Return whether each slice of a view along its dim 0 is of one row of a tensor, in order."""
    stride, offset = d.call.argument("stride"), d.call.argument("offset")
    if not x or not view or x[0] != view[0]:
        return False
    last = offset + sum((n - 1) * step for n, step in zip(view[1:], stride[1:], strict=True))
    return bool(stride[0] == math.prod(x[1:]) > last)


def _with(names: str, dim: int, letter: str) -> str:
    """Return the letters with the one of a dim replaced."""
    return names[:dim] + letter + names[dim + 1 :]


def _same_but(dim: int, one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether two shapes are equal except in one dim."""
    return len(one) == len(other) and all(
        n == m for d, (n, m) in enumerate(zip(one, other, strict=True)) if d != dim
    )
