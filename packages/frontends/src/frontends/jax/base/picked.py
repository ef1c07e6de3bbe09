"""One element of each row, as in `x[jnp.arange(n), places]`.

JAX reads that by pairs of indices, of which one counts the rows, and a rule knows no values: it has
to take both dims for whole. A gather that has the rows as a batching dim does the same, and rows
can be split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import lax

from frontends.jax.base import _compat
from frontends.jax.base._compat import ClosedJaxpr, JaxprEqn, Literal, Var, aval

_SCATTERS = frozenset({"scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max"})

Makers = Mapping[Var, JaxprEqn]


def by_rows(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same program, in which indices that count rows are batching dims.

    Indices that are no longer read remain as dead code.
    """
    made_by: dict[Var, JaxprEqn] = {}
    equations: list[JaxprEqn] = []
    for equation in closed.jaxpr.eqns:
        for new in _by_rows(equation, made_by):
            equations.append(new)
            made_by.update(dict.fromkeys(new.outvars, new))
    return ClosedJaxpr(closed.jaxpr.replace(eqns=equations), closed.consts)


@dataclass(frozen=True, slots=True)
class _Numbers:
    """The dimension numbers of a gather or scatter, by the names that a gather has for them."""

    taken: tuple[int, ...]
    index_map: tuple[int, ...]
    batching: tuple[int, ...]
    of_indices: tuple[int, ...]

    @classmethod
    def of(cls, equation: JaxprEqn) -> _Numbers:
        numbers = equation.params["dimension_numbers"]
        if isinstance(numbers, lax.GatherDimensionNumbers):
            of_indices = numbers.start_indices_batching_dims
            taken, index_map = numbers.collapsed_slice_dims, numbers.start_index_map
        else:
            of_indices = numbers.scatter_indices_batching_dims
            taken, index_map = numbers.inserted_window_dims, numbers.scatter_dims_to_operand_dims
        return cls(taken, index_map, numbers.operand_batching_dims, of_indices)

    def put_into(self, numbers: Any) -> Any:
        """The numbers of a gather or scatter with these."""
        if isinstance(numbers, lax.GatherDimensionNumbers):
            return lax.GatherDimensionNumbers(
                offset_dims=numbers.offset_dims,
                collapsed_slice_dims=self.taken,
                start_index_map=self.index_map,
                operand_batching_dims=self.batching,
                start_indices_batching_dims=self.of_indices,
            )
        return lax.ScatterDimensionNumbers(
            update_window_dims=numbers.update_window_dims,
            inserted_window_dims=self.taken,
            scatter_dims_to_operand_dims=self.index_map,
            operand_batching_dims=self.batching,
            scatter_indices_batching_dims=self.of_indices,
        )


def _by_rows(equation: JaxprEqn, made_by: Makers) -> list[JaxprEqn]:
    """The equations in place of one; itself if no index of it counts rows."""
    name = equation.primitive.name
    if name != "gather" and name not in _SCATTERS:
        return [equation]
    source, indices, *others = equation.invars
    joining = _joining(indices, made_by)
    columns = [] if joining is None else [v for v in joining.invars if isinstance(v, Var)]
    numbers = _Numbers.of(equation)
    if joining is None or len(columns) != len(numbers.index_map):
        return [equation]
    pairs = dict(zip(numbers.batching, numbers.of_indices, strict=True))
    kept: list[int] = []
    for k, (column, dim) in enumerate(zip(columns, numbers.index_map, strict=True)):
        counted = _counted(column, made_by)
        rows = aval(source).shape[dim]
        is_last = k == len(columns) - 1 and not kept
        if (
            counted is not None
            and counted not in pairs.values()
            and dim in numbers.taken
            and not is_last
            and aval(column).shape[counted] == rows
        ):
            pairs[dim] = counted
        else:
            kept.append(k)
    if len(kept) == len(columns):
        return [equation]
    changed = _Numbers(
        tuple(d for d in numbers.taken if d not in pairs),
        tuple(numbers.index_map[k] for k in kept),
        tuple(sorted(pairs)),
        tuple(pairs[d] for d in sorted(pairs)),
    )
    params = {
        **equation.params,
        "dimension_numbers": changed.put_into(equation.params["dimension_numbers"]),
    }
    before, index = _joined([columns[k] for k in kept], joining)
    return [*before, equation.replace(invars=[source, index, *others], params=params)]


def _joined(columns: Sequence[Var], joining: JaxprEqn) -> tuple[list[JaxprEqn], Var]:
    """The indices that consist of some of the columns, and the equations that make them."""
    if len(columns) == 1:
        return [], columns[0]
    (whole,) = joining.outvars
    shape = (*aval(whole).shape[:-1], len(columns))
    made = _compat.variable_like(whole, shape)
    return [joining.replace(invars=list(columns), outvars=[made])], made


def _joining(indices: Any, made_by: Makers) -> JaxprEqn | None:
    """What concatenates indices of columns, if each part is one column."""
    joining = made_by.get(indices) if isinstance(indices, Var) else None
    if joining is None or joining.primitive.name != "concatenate":
        return None
    is_along_last = joining.params["dimension"] == len(aval(indices).shape) - 1
    is_each_one = all(aval(column).shape[-1] == 1 for column in joining.invars)
    return joining if is_along_last and is_each_one else None


def _holds(shaped: Any) -> bool:
    """Whether an integer type can hold a count along any of the dims: int8 begins anew at 128."""
    is_integer = np.issubdtype(shaped.dtype, np.integer)
    return is_integer and np.iinfo(shaped.dtype).max >= max(shaped.shape, default=1) - 1


def _counted(atom: Any, made_by: Makers) -> int | None:
    """The dim along which a value counts from 0, by 1, and is equal along all others."""
    maker = made_by.get(atom) if isinstance(atom, Var) else None
    if maker is None:
        return None
    name, params = maker.primitive.name, maker.params
    if name in ("iota", "convert_element_type") and not _holds(aval(atom)):
        return None
    if name == "iota":
        return int(params["dimension"])
    if name == "convert_element_type":
        return _counted(maker.invars[0], made_by)
    if name == "select_n":  # a negative index counts from the end; none of these is
        is_below, counted, _ = maker.invars
        compared = made_by.get(is_below) if isinstance(is_below, Var) else None
        if compared is None or compared.primitive.name != "lt" or compared.invars[0] is not counted:
            return None
        bound = compared.invars[1]
        is_zero = isinstance(bound, Literal) and bound.val == 0
        return _counted(counted, made_by) if is_zero else None
    if name == "broadcast_in_dim" and isinstance(maker.invars[0], Var):
        dim = _counted(maker.invars[0], made_by)
        if dim is None:
            return None
        there = int(params["broadcast_dimensions"][dim])
        is_whole = aval(maker.invars[0]).shape[dim] == params["shape"][there]
        return there if is_whole else None
    return None
