"""Solves integer programs by the HiGHS library that python-mip loads, and reports progress."""

from __future__ import annotations

from typing import Any

import cffi  # type: ignore[import-untyped]
import numpy as np
from mip.highs import ffi, highslib, libfile  # type: ignore[import-untyped]

from autoshard.base.arrays import Array
from autoshard.errors import InternalError
from autoshard.solvers.milp import GAP, Milp, Outcome, Watch

# python-mip declares the callback struct of an older HiGHS. This function of the loaded library
# knows the layout of its own struct.
_items = cffi.FFI()
_items.cdef("const void *Highs_getCallbackDataOutItem(const void *data, const char *item);")
_item = _items.dlopen(libfile).Highs_getCallbackDataOutItem


def solve_highs(
    milp: Milp,
    *,
    time_s: float,
    nodes: int | None,
    seed: int,
    start: Array | None,
    watch: Watch,
) -> Outcome:
    """Solve by HiGHS on one thread, so that the answer depends on nothing but the arguments.

    Args:
        milp: The program to solve.
        time_s: Stop after this many seconds of wall clock.
        nodes: Stop after this many nodes of branch and bound; `None` is no limit.
        seed: HiGHS's random seed.
        start: A feasible point, shape (columns,).
        watch: See `Watch`. If it raises, also a KeyboardInterrupt, the solve ends and the exception
            is raised again. HiGHS does not call it before branch and bound, so a Ctrl-C during the
            relaxation of a large program takes effect only when the time is up.
    """
    n_columns, n_rows = len(milp.cost), len(milp.row_lower)
    integrality = np.zeros(n_columns, dtype=np.int32)
    integrality[: milp.n_integer] = highslib.kHighsVarTypeInteger
    raised: list[BaseException] = []

    def on_error(_kind: Any, error: BaseException, _trace: Any) -> None:
        raised.append(error)  # such as a Ctrl-C before the first line of `on_event`

    @ffi.callback("HighsCCallbackType", onerror=on_error)  # type: ignore[untyped-decorator]
    def on_event(kind: int, _message: Any, data: Any, answer: Any, _user: Any) -> None:
        if answer == ffi.NULL and kind != highslib.kHighsCallbackMipImprovingSolution:
            return
        try:
            point = None
            if kind == highslib.kHighsCallbackMipImprovingSolution:
                point = _doubles(_get(data, b"mip_solution"), n_columns)
            go_on = not raised and watch(point, _doubles(_get(data, b"mip_dual_bound"), 1)[0])
        except BaseException as error:
            raised.append(error)
            go_on = False
        if not go_on and answer != ffi.NULL:
            answer.user_interrupt = 1

    model = highslib.Highs_create()
    try:
        highslib.Highs_setBoolOptionValue(model, b"output_flag", 0)
        whole = {"threads": 1, "random_seed": seed % 2**31}
        if nodes is not None:
            whole["mip_max_nodes"] = min(nodes, 2**31 - 1)
        for name, value in whole.items():
            highslib.Highs_setIntOptionValue(model, name.encode(), value)
        limits = {"time_limit": max(time_s, 0.0), "mip_rel_gap": GAP, "mip_abs_gap": GAP}
        for name, real in limits.items():
            highslib.Highs_setDoubleOptionValue(model, name.encode(), real)
        status = highslib.Highs_passMip(
            model,
            n_columns,
            n_rows,
            len(milp.values),
            highslib.kHighsMatrixFormatRowwise,
            highslib.kHighsObjSenseMinimize,
            0.0,
            _c("double[]", milp.cost),
            _c("double[]", np.zeros(n_columns)),
            _c("double[]", milp.upper),
            _c("double[]", milp.row_lower),
            _c("double[]", milp.row_upper),
            _c("int[]", milp.starts),
            _c("int[]", milp.columns),
            _c("double[]", milp.values),
            _c("int[]", integrality),
        )
        if status == highslib.kHighsStatusError:
            raise InternalError(
                "HiGHS takes programs of finite numbers and bounds; it refused one of "
                f"{n_columns} columns and {n_rows} rows"
            )
        if start is not None:
            highslib.Highs_setSolution(model, _c("double[]", start), ffi.NULL, ffi.NULL, ffi.NULL)
        highslib.Highs_setCallback(model, on_event, ffi.NULL)
        for kind in (
            highslib.kHighsCallbackMipImprovingSolution,
            highslib.kHighsCallbackMipInterrupt,
        ):
            highslib.Highs_startCallback(model, kind)
        highslib.Highs_run(model)
        if raised:
            raise raised[0]
        return _outcome(model, n_columns, n_rows)
    finally:
        highslib.Highs_destroy(model)


def _outcome(model: Any, n_columns: int, n_rows: int) -> Outcome:
    if highslib.Highs_getModelStatus(model) in (
        highslib.kHighsModelStatusInfeasible,
        highslib.kHighsModelStatusUnboundedOrInfeasible,  # not unbounded: all columns have bounds
    ):
        return Outcome(None, np.inf, 0)
    bound = ffi.new("double *")
    highslib.Highs_getDoubleInfoValue(model, b"mip_dual_bound", bound)
    count = ffi.new("int64_t *")
    highslib.Highs_getInt64InfoValue(model, b"mip_node_count", count)
    nodes = max(0, int(count[0]))
    status = ffi.new("int *")
    highslib.Highs_getIntInfoValue(model, b"primal_solution_status", status)
    if status[0] != highslib.kHighsSolutionStatusFeasible:
        return Outcome(None, float(bound[0]), nodes)
    x, duals = np.empty(n_columns), np.empty(n_columns)
    activity, prices = np.empty(n_rows), np.empty(n_rows)
    highslib.Highs_getSolution(
        model, *(_c("double[]", array) for array in (x, duals, activity, prices))
    )
    return Outcome(x, float(bound[0]), nodes)


def _c(kind: str, array: Any) -> Any:
    """An array as a C pointer; the caller's reference keeps the array alive during the call."""
    return ffi.from_buffer(kind, np.ascontiguousarray(array), require_writable=False)


def _get(data: Any, item: bytes) -> Any:
    """The address of an item in the data of a callback."""
    return _item(_items.cast("void *", int(ffi.cast("uintptr_t", data))), item)


def _doubles(address: Any, n: int) -> Array:
    """A copy of the `n` doubles at an address; all nan if the address is null."""
    if address == _items.NULL:
        return np.full(n, np.nan)
    return np.frombuffer(_items.buffer(address, 8 * n), dtype=np.float64).copy()
