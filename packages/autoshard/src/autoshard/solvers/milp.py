"""A mixed-integer linear program as arrays, and what a solver of such programs returns.

The solver (`highs`) is the library that python-mip loads. It gets arrays, through python-mip's
low-level bindings, instead of python-mip's objects: for a chain of 2,000 nodes and 16 strategies
(544,000 columns), one `mip.Var` and `mip.LinExpr` for each column and row take ten times as long as
building the arrays and passing them to HiGHS [8.5 s and 0.8 s on one core of an AMD EPYC,
2026-11-20].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoshard.base.arrays import Array


@dataclass(frozen=True, slots=True, eq=False)
class Milp:
    """Minimise `cost @ x` with `0 <= x <= upper`, `row_lower <= A x <= row_upper`.

    The first `n_integer` of the x are whole numbers. A is sparse, by rows: row r has `values[k]` in
    column `columns[k]` for `starts[r] <= k < starts[r + 1]`.
    """

    cost: Array
    """Shape (columns,)."""
    upper: Array
    """Shape (columns,)."""
    n_integer: int
    """The number of columns that are whole numbers."""
    row_lower: Array
    """Shape (rows,); may be -inf."""
    row_upper: Array
    """Shape (rows,); may be inf."""
    starts: NDArray[np.int32]
    """Shape (rows + 1,)."""
    columns: NDArray[np.int32]
    """Shape (entries,)."""
    values: Array
    """Shape (entries,)."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The result of a solver."""

    x: Array | None
    """The best point found, shape (columns,); `None` if none was found."""
    bound: float
    """No point costs less; infinite if no point is feasible."""
    nodes: int
    """The number of nodes of branch and bound that were processed."""


Watch = Callable[[Array | None, float], bool]
"""Called with each better point, or with `None` if only time has passed, and with the bound so far;
returns whether to go on."""

GAP = 1e-9
"""Relative and absolute gap at which the solver stops, for costs near 1e4 (see `ilp.COST`)."""
