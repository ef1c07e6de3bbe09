"""The table "JAX primitive -> entry"; a new primitive needs an entry here and nothing else.

The rules themselves are autoshard's, one table for all frontends (`autoshard.RULES`). An entry here
says what a primitive is called there, which of its parameters its rule needs, and which parameters
hold shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from operator import index
from typing import Any

import autoshard
from autoshard import Rule

from frontends.base import row_products
from frontends.base.rule_table import OperatorEntry
from frontends.jax.base._compat import JaxprEqn, Literal, aval
from frontends.jax.base.described import Described
from frontends.jax.base.masks import can_mask
from frontends.jax.rules import attention, pallas

Attributes = Callable[[JaxprEqn], dict[str, Any]]
"""Returns what the rule of an equation needs to know besides shapes."""

ShapeParameters = Callable[[Described], Mapping[str, Any]]
"""Returns the parameters that hold shapes, as they are for parts of the arrays."""


def _none(equation: JaxprEqn) -> dict[str, Any]:
    return {}


def _kind(
    kind: str, attributes: Attributes = _none, part: ShapeParameters | None = None
) -> OperatorEntry[Described]:
    """The entry of a primitive with the operands and results of an operator that autoshard has.

    Args:
        kind: The name of that operator in `autoshard.RULES`.
        attributes: What its rule needs to know besides shapes.
        part: See `ShapeParameters`.
    """

    def rule(d: Described) -> Rule:
        return autoshard.rule_of(kind, d.operands, d.results, **attributes(d.equation))

    def flops(d: Described) -> float:
        return autoshard.flops_of(kind, d.operands, d.results, **attributes(d.equation))

    return OperatorEntry(rule, flops, part)


def _parameters(**names: str) -> Attributes:
    """Attributes that are parameters of other names; all are integers or tuples of integers."""

    def attributes(equation: JaxprEqn) -> dict[str, Any]:
        values = {ours: equation.params[theirs] for ours, theirs in names.items()}
        return {
            k: tuple(map(index, v)) if isinstance(v, Iterable) else index(v)
            for k, v in values.items()
        }

    return attributes


def _of_vectors(equation: JaxprEqn) -> dict[str, Any]:
    return {"n_dims": 1}


def _conversion(equation: JaxprEqn) -> dict[str, Any]:
    """Exact if the dtype stays, or is floating-point before and after and does not get smaller."""
    before, after = aval(equation.invars[0]).dtype, aval(equation.outvars[0]).dtype
    is_float = all(kind in "fc" for kind in (before.kind, after.kind)) or before == after
    return {"exact": is_float and after.itemsize >= before.itemsize}


def _pad(equation: JaxprEqn) -> dict[str, Any]:
    padding = equation.params["padding_config"]
    value = equation.invars[1]
    return {
        "dims": tuple(d for d, p in enumerate(padding) if tuple(p) != (0, 0, 0)),
        "zeros": isinstance(value, Literal) and bool(value.val == 0),
    }


def _window(equation: JaxprEqn) -> dict[str, Any]:
    """The dims in which windows have several elements, strides, padding or dilation.

    All other dims are taken element by element.
    """
    params = equation.params
    strides = params["window_strides"]
    dilations = [params.get(f"{of}_dilation", (1,) * len(strides)) for of in ("base", "window")]
    padding = map(tuple, params["padding"])
    moves = zip(params["window_dimensions"], strides, padding, *dilations, strict=True)
    return {"dims": tuple(d for d, move in enumerate(moves) if move != (1, 1, (0, 0), 1, 1))}


def _fft(equation: JaxprEqn) -> dict[str, Any]:
    rank = len(aval(equation.invars[0]).shape)
    return {"dims": tuple(range(rank - len(equation.params["fft_lengths"]), rank))}


def _dot_general(equation: JaxprEqn) -> dict[str, Any]:
    contracting, batch = equation.params["dimension_numbers"]
    return {"contracting": contracting, "batch": batch}


def _convolution(equation: JaxprEqn) -> dict[str, Any]:
    numbers = equation.params["dimension_numbers"]
    return {
        "data": numbers.lhs_spec,
        "kernel": numbers.rhs_spec,
        "result": numbers.out_spec,
        "groups": equation.params["feature_group_count"],
        "batch_groups": equation.params["batch_group_count"],
    }


def _dimension_numbers(*names: str, **more: Any) -> Attributes:
    """Attributes that are fields of the dimension numbers of a gather or scatter."""

    def attributes(equation: JaxprEqn) -> dict[str, Any]:
        numbers = equation.params["dimension_numbers"]
        return {name: getattr(numbers, name) for name in names} | more

    return attributes


_GATHER = _dimension_numbers(
    "offset_dims",
    "collapsed_slice_dims",
    "start_index_map",
    "operand_batching_dims",
    "start_indices_batching_dims",
)
_SCATTER = (
    "update_window_dims",
    "inserted_window_dims",
    "scatter_dims_to_operand_dims",
    "operand_batching_dims",
    "scatter_indices_batching_dims",
)
_AXIS, _DIMENSION = _parameters(dim="axis"), _parameters(dim="dimension")
_AXES = _parameters(dims="axes")


def _indexing(
    kind: str, attributes: Attributes, part: ShapeParameters | None = None
) -> OperatorEntry[Described]:
    """The entry of a gather or scatter, whose indexed dims may be split if `can_mask` says so."""

    def rule(d: Described) -> Rule:
        masked = d.masked and can_mask(d.equation)
        more = attributes(d.equation)
        return autoshard.rule_of(kind, d.operands, d.results, **more, masked=masked)

    return OperatorEntry(rule, part=part)


def _reshape(d: Described) -> Rule:
    """A reshape with `dimensions` is that of the transposed operand."""
    order = d.attributes["dimensions"]
    if order is None:
        return autoshard.rule_of("reshape", d.operands, d.results)
    (shape,) = d.operands
    rule = autoshard.rule_of("reshape", (tuple(shape[dim] for dim in order),), d.results)
    of_dim = dict(zip(order, rule.operands[0], strict=True))
    return replace(rule, operands=(tuple(of_dim[dim] for dim in range(len(shape))),))


def _convolution_flops(d: Described) -> float:
    """The gradient of a strided convolution has holes in its data, which are not multiplied."""
    more = _convolution(d.equation)
    count = autoshard.flops_of("convolution", d.operands, d.results, **more)
    return count / float(math.prod(d.attributes["lhs_dilation"]))


def _shape(name: str) -> ShapeParameters:
    """The parameter that is the shape of the result."""
    return lambda d: {name: d.results[0]}


def _slice(d: Described) -> dict[str, Any]:
    """Only dims that are taken as a whole can be split, so only their limits change."""
    whole = Described.of(d.equation)
    pairs = zip(whole.operands[0], whole.results[0], strict=True)
    dims = zip(pairs, d.operands[0], d.attributes["limit_indices"], strict=True)
    return {"limit_indices": tuple(n if a == b else limit for (a, b), n, limit in dims)}


def _groups(d: Described) -> dict[str, Any]:
    """A device has as many groups as its part of the grouped dim holds."""
    numbers, (data, kernel) = d.attributes["dimension_numbers"], d.operands
    if d.attributes["batch_group_count"] > 1:
        return {"batch_group_count": data[numbers.lhs_spec[0]] // d.results[0][numbers.out_spec[0]]}
    return {"feature_group_count": data[numbers.lhs_spec[1]] // kernel[numbers.rhs_spec[1]]}


def _gathered(d: Described) -> dict[str, Any]:
    whole = aval(d.equation.invars[0]).shape
    batching = d.attributes["dimension_numbers"].operand_batching_dims
    sizes = enumerate(zip(d.operands[0], d.attributes["slice_sizes"], strict=True))
    return {
        "slice_sizes": tuple(
            n if size == whole[dim] and dim not in batching else size for dim, (n, size) in sizes
        )
    }


# fmt: off
_SAME_NAME = (
    "abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan", "atan2", "atanh", "bessel_i0e",
    "bessel_i1e", "cbrt", "ceil", "cholesky", "clamp", "clz", "copy", "cos", "cosh", "digamma",
    "div", "dynamic_update_slice", "eig", "eigh", "eq", "erf", "erf_inv", "erfc", "exp", "exp2",
    "expm1", "floor", "ge", "gt", "igamma", "igamma_grad_a", "igammac", "imag", "is_finite", "le",
    "lgamma", "log", "log1p", "logistic", "lt", "lu", "max", "min", "mul", "ne", "neg", "nextafter",
    "not", "or", "polygamma", "population_count", "pow", "qr", "real", "reduce_precision",
    "regularized_incomplete_beta", "rem", "round", "rsqrt", "schur", "select_n", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt", "square",
    "squeeze", "sub", "svd", "tan", "tanh", "threefry2x32", "xor", "zeta",
)
"""Primitives whose rule needs only shapes, and that have the same name in `autoshard.RULES`."""
# fmt: on

ENTRIES: dict[str, OperatorEntry[Described]] = {
    **{name: _kind(name) for name in _SAME_NAME},
    **dict.fromkeys(("add_any", "complex"), _kind("add")),
    **dict.fromkeys(("conj", "copy_p", "name", "stop_gradient"), _kind("copy")),
    **{f"{order}_to": _kind(order) for order in ("eq", "le", "lt")},  # a total order of floats
    "one_minus_square": _kind("square"),  # of JAX 0.11
    "iota": _kind("iota", part=_shape("shape")),
    **dict.fromkeys(("empty", "empty2"), _kind("full")),  # a number that nobody reads
    "integer_pow": _kind("integer_pow", _parameters(exponent="y")),
    "convert_element_type": _kind("convert", _conversion),
    "bitcast_convert_type": _kind("bitcast"),
    "dot_general": _kind("dot_general", _dot_general),
    "conv_general_dilated": OperatorEntry(
        _kind("convolution", _convolution).rule, _convolution_flops, _groups
    ),
    "transpose": _kind("transpose", _parameters(permutation="permutation")),
    "reshape": OperatorEntry(_reshape, part=_shape("new_sizes")),
    "slice": _kind("slice", part=_slice),
    "dynamic_slice": _kind("dynamic_slice", part=_shape("slice_sizes")),
    "broadcast_in_dim": _kind(
        "broadcast", _parameters(dims="broadcast_dimensions"), _shape("shape")
    ),
    **{name: _kind(name, _AXES) for name in ("reduce_sum", "reduce_max", "reduce_min")},
    # JAX has no collective that multiplies, and none of booleans: the reduced dims stay whole
    **dict.fromkeys(
        ("reduce_prod", "reduce_and", "reduce_or", "reduce_xor"), _kind("reduce", _AXES)
    ),
    **{name: _kind(name, _AXES) for name in ("argmax", "argmin")},
    **{
        name: _kind(name, _AXIS)
        for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "split", "top_k")
    },
    **{name: _kind(name, _DIMENSION) for name in ("sort", "concatenate")},
    "rev": _kind("rev", _parameters(dims="dimensions")),
    "pad": _kind("pad", _pad),
    "fft": _kind("fft", _fft),
    **dict.fromkeys(("reduce_window_max", "reduce_window_min"), _kind("window", _window)),
    "reduce_window_sum": _kind("window_sum", _window),
    "select_and_scatter_add": _kind("window_max_gradient", _window),
    # a vector of pivots, or of a diagonal, for each problem
    **dict.fromkeys(
        ("lu_pivots_to_permutation", "tridiagonal_solve"), _kind("factorization", _of_vectors)
    ),
    "triangular_solve": _kind("triangular_solve", _parameters(left_side="left_side")),
    "gather": _indexing(
        "gather",
        lambda equation: _GATHER(equation) | {"slice_sizes": equation.params["slice_sizes"]},
        _gathered,
    ),
    **dict.fromkeys(
        ("scatter", "scatter-max", "scatter-min", "scatter-mul", "scatter-sub"),
        _indexing("scatter", _dimension_numbers(*_SCATTER, adds=False)),
    ),
    "scatter-add": _indexing("scatter", _dimension_numbers(*_SCATTER, adds=True)),
    "meshwright_attention": OperatorEntry(attention.rule, attention.flops, sends=True),
    "meshwright_attention_gradient": OperatorEntry(
        attention.gradient_rule, attention.flops, sends=True
    ),
    "pallas_call": OperatorEntry(pallas.rule, pallas.flops, pallas.part),
    "meshwright_multiply_rows": OperatorEntry(row_products.rows_multiplied, row_products.flops),
    "meshwright_multiply_groups": OperatorEntry(row_products.groups_multiplied, row_products.flops),
}
