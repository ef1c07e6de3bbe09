"""A mixed-integer linear program as arrays, and what a solver of such programs hands back.

The solver (`highs`) is the library that python-mip loads. It is given arrays through
python-mip's own bindings, not its objects: for a chain of 2,000 nodes and 16 strategies (544,000
columns) a `mip.Var` and a `mip.LinExpr` for each column and row take ten times as long as making
the arrays and passing them to HiGHS [8.5 s and 0.8 s on one core of an AMD EPYC, 2026-11-20].
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

    The first `n_integer` of the columns are whole numbers. A is sparse, by rows: row r has
    `values[k]` in column `columns[k]` for `starts[r] <= k < starts[r + 1]`.
    """

    cost: Array
    """Shape (columns,)."""
    upper: Array
    """Shape (columns,)."""
    n_integer: int
    """Columns that are whole."""
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
    """What a solver found."""

    x: Array | None
    """The best point, shape (columns,); `None` if there is none."""
    bound: float
    """No point costs less; infinite if there is no point at all."""
    nodes: int
    """Of branch and bound, that were looked at."""


Watch = Callable[[Array | None, float], bool]
"""Told of each better point (`None` where only time has passed) and the bound so far; whether to go
on."""

GAP = 1e-9
"""Relative and absolute gap at which the solver stops, of costs near 1e4: see `ilp.COST`."""
