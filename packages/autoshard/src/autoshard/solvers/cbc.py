"""CBC, as python-mip loads it: exact, and silent until it ends."""

from __future__ import annotations

from typing import Any

import numpy as np
from mip.cbc import cbclib, ffi  # type: ignore[import-untyped]

from autoshard.base.arrays import Array
from autoshard.solvers.milp import GAP, Milp, Outcome, Watch


def solve_cbc(
    milp: Milp,
    *,
    time_s: float,
    nodes: int | None,
    seed: int,
    start: Array | None,
    watch: Watch,
) -> Outcome:
    """Solve by CBC, on one thread; the arguments are those of `solve_highs`.

    CBC keeps the time only between its steps, hears no Ctrl-C on the way, and tells `watch` nothing
    but the end. Its nodes are limited, but python-mip has no way to ask how many there were.
    """
    n_columns, n_rows = len(milp.cost), len(milp.row_lower)
    model = cbclib.Cbc_newModel()
    try:
        cbclib.Cbc_setLogLevel(model, 0)
        # CBC takes columns and rows one by one, from where they lie in the arrays.
        whole = [b"\1"] * milp.n_integer + [b"\0"] * (n_columns - milp.n_integer)
        for cost, upper, kind in zip(milp.cost.tolist(), milp.upper.tolist(), whole, strict=True):
            cbclib.Cbc_addCol(model, b"", 0.0, upper, cost, kind, 0, ffi.NULL, ffi.NULL)
        columns = ffi.from_buffer("int[]", milp.columns)
        values = ffi.from_buffer("double[]", milp.values)
        starts = milp.starts.tolist()
        lower, upper_ = milp.row_lower.tolist(), milp.row_upper.tolist()
        for row in range(n_rows):
            at, n = starts[row], starts[row + 1] - starts[row]
            sense = b"E" if lower[row] == upper_[row] else b"L"
            cbclib.Cbc_addRow(model, b"", n, columns + at, values + at, sense, upper_[row])
        cbclib.Cbc_setIntParam(model, cbclib.INT_PARAM_THREADS, 0)
        cbclib.Cbc_setIntParam(model, cbclib.INT_PARAM_RANDOM_SEED, seed % 2**31)
        cbclib.Cbc_setIntParam(model, cbclib.INT_PARAM_ELAPSED_TIME, 1)
        if np.isfinite(time_s):
            cbclib.Cbc_setMaximumSeconds(model, max(time_s, 0.0))
        if nodes is not None:
            cbclib.Cbc_setMaximumNodes(model, min(nodes, 2**31 - 1))
        cbclib.Cbc_setAllowableGap(model, GAP)
        cbclib.Cbc_setAllowableFractionGap(model, GAP)
        if start is not None:
            at = np.arange(milp.n_integer, dtype=np.int32)
            cbclib.Cbc_setMIPStartI(
                model,
                milp.n_integer,
                ffi.from_buffer("int[]", at),
                ffi.from_buffer("double[]", start),
            )
        cbclib.Cbc_solve(model)
        outcome = _outcome(model, n_columns)
    finally:
        cbclib.Cbc_deleteModel(model)
    watch(outcome.x, outcome.bound)
    return outcome


def _outcome(model: Any, n_columns: int) -> Outcome:
    if cbclib.Cbc_isProvenInfeasible(model):
        return Outcome(None, np.inf, 0)
    bound = float(cbclib.Cbc_getBestPossibleObjValue(model))
    if not cbclib.Cbc_isProvenOptimal(model) and cbclib.Cbc_numberSavedSolutions(model) < 1:
        return Outcome(None, bound, 0)
    x = np.frombuffer(ffi.buffer(cbclib.Cbc_getColSolution(model), 8 * n_columns)).copy()
    return Outcome(x, bound, 0)
