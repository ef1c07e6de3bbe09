"""Combining the terms of partial results, in the same way as `shardspec.assemble`.

Terms are flat arrays of one dtype. The result has that dtype too, and each step is rounded to it.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from shardspec import Reduction

from crossmesh.errors import MissingExtraError

Array = npt.NDArray[Any]

_COMBINE: dict[Reduction, Callable[..., Array]] = {
    "sum": np.add,
    "avg": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "product": np.multiply,
}


def number_type(name: str) -> np.dtype[Any]:
    """The numpy dtype with the name that a plan uses for it.

    Raises:
        MissingExtraError: The dtype is one of ml_dtypes, which is not installed or too old to have
            it.
    """
    try:
        return np.dtype(name)
    except TypeError:
        try:
            import ml_dtypes

            extension: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        except (ImportError, AttributeError):
            raise MissingExtraError(f"an array of type {name}", "dtypes") from None
        return extension


def in_a_row(levels: Sequence[tuple[Reduction, int]], name: str) -> bool:
    """Whether the terms can be combined one after the other in the dtype of the elements.

    Terms of several levels, such as a sum of maxima, cannot; nor can averages of integers, because
    their sum may overflow the dtype.
    """
    kinds = [kind for kind, _ in levels]
    integers = "int" in name or (name[:1] in "<>" and name[1:2] in "iu")
    return len(kinds) < 2 and not (kinds == ["avg"] and integers)


def add_to(total: Array, term: Array, kind: Reduction) -> None:
    """Combine a term into `total`, in place."""
    _COMBINE[kind](term, total, out=total)


def finish(total: Array, levels: Sequence[tuple[Reduction, int]]) -> None:
    """Turn the `total` of all terms into the result, in place; it changes averages only."""
    for kind, count in levels:
        if kind == "avg":
            total[...] = total / total.dtype.type(count)


def combine(terms: Sequence[Array], levels: Sequence[tuple[Reduction, int]]) -> Array:
    """Combine all terms, level by level, the minor level first."""
    partial = list(terms)
    for kind, count in reversed(levels):
        partial = [_level(kind, partial[i : i + count]) for i in range(0, len(partial), count)]
    (result,) = partial
    return result


def _level(kind: Reduction, terms: Sequence[Array]) -> Array:
    dtype = terms[0].dtype
    if kind == "avg" and dtype.kind in "iu":
        # The sum of the terms may overflow; the sums of quotients and of remainders do not.
        wide = [term.astype(np.uint64 if dtype.kind == "u" else np.int64) for term in terms]
        count = wide[0].dtype.type(len(wide))
        quotient = functools.reduce(np.add, [term // count for term in wide])
        rest = functools.reduce(np.add, [term % count for term in wide])
        return np.asarray(quotient + rest // count).astype(dtype)
    total = terms[0].copy()
    for term in terms[1:]:
        add_to(total, term, kind)
    finish(total, [(kind, len(terms))])
    return total
