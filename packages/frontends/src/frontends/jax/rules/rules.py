"""The table "JAX primitive -> kind of operator", the only thing a new primitive needs.

The rules are autoshard's, one table for all frontends (`autoshard.RULES`); here stands what each
primitive is called there, and which of its parameters its rule needs. A primitive without an entry
runs unsharded, which is always right.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from operator import index
from typing import Any

import autoshard
from autoshard import Rule

from frontends.jax.base._compat import JaxprEqn, Literal, aval
from frontends.jax.base.loops import bodies_of
from frontends.jax.base.masks import can_mask

Shape = tuple[int, ...]
Attributes = Callable[[JaxprEqn], dict[str, Any]]
"""What the rule of an equation's primitive needs to know beside shapes."""


def _shapes(equation: JaxprEqn) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    return (
        tuple(aval(v).shape for v in equation.invars),
        tuple(aval(v).shape for v in equation.outvars),
    )


def _parameters(**names: str) -> Attributes:
    """Attributes that are parameters under other names: whole numbers, or tuples of them."""

    def attributes(equation: JaxprEqn) -> dict[str, Any]:
        values = {ours: equation.params[theirs] for ours, theirs in names.items()}
        return {
            k: tuple(map(index, v)) if isinstance(v, Iterable) else index(v)
            for k, v in values.items()
        }

    return attributes


def _none(equation: JaxprEqn) -> dict[str, Any]:
    return {}


def _conversion(equation: JaxprEqn) -> dict[str, Any]:
    """Exact is a conversion to a floating-point type at least as precise, or to the same type."""
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
    """Dims that a window moves along, strides or pads; the others are taken element by element."""
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
    """Fields of the dimension numbers of a gather or scatter."""

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

# fmt: off
_SAME_NAME = (
    "abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan", "atan2", "atanh", "bessel_i0e",
    "bessel_i1e", "cbrt", "ceil", "cholesky", "clamp", "clz", "copy", "cos", "cosh", "digamma",
    "div", "dynamic_slice", "dynamic_update_slice", "eigh", "eq", "erf", "erf_inv", "erfc", "exp",
    "exp2", "expm1", "floor", "ge", "gt", "igamma", "igammac", "imag", "iota", "is_finite", "le",
    "lgamma", "log", "log1p", "logistic", "lt", "lu", "max", "min", "mul", "ne", "neg", "nextafter",
    "not", "or", "polygamma", "population_count", "pow", "real", "reduce_precision", "rem", "round",
    "rsqrt", "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign",
    "sin", "sinh", "slice", "sqrt", "square", "squeeze", "sub", "svd", "tan", "tanh",
    "threefry2x32", "xor", "zeta",
)
"""Primitives whose rule needs their shapes only, and that both tables call alike."""
# fmt: on

_KINDS: dict[str, tuple[str, Attributes]] = {
    **{name: (name, _none) for name in _SAME_NAME},
    **dict.fromkeys(("add_any", "complex"), ("add", _none)),
    **dict.fromkeys(("conj", "copy_p", "name", "stop_gradient"), ("copy", _none)),
    "integer_pow": ("integer_pow", _parameters(exponent="y")),
    "convert_element_type": ("convert", _conversion),
    "bitcast_convert_type": ("bitcast", _none),
    "dot_general": ("dot_general", _dot_general),
    "conv_general_dilated": ("convolution", _convolution),
    "transpose": ("transpose", _parameters(permutation="permutation")),
    "reshape": ("reshape", _none),
    "broadcast_in_dim": ("broadcast", _parameters(dims="broadcast_dimensions")),
    **{name: (name, _AXES) for name in ("reduce_sum", "reduce_max", "reduce_min")},
    # JAX has no collective that multiplies, and none of booleans: the reduced dims stay whole
    **dict.fromkeys(("reduce_prod", "reduce_and", "reduce_or"), ("reduce", _AXES)),
    **{name: (name, _AXES) for name in ("argmax", "argmin")},
    **{
        name: (name, _AXIS)
        for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "split", "top_k")
    },
    **{name: (name, _DIMENSION) for name in ("sort", "concatenate")},
    "rev": ("rev", _parameters(dims="dimensions")),
    "pad": ("pad", _pad),
    "fft": ("fft", _fft),
    **dict.fromkeys(("reduce_window_max", "reduce_window_min"), ("window", _window)),
    "reduce_window_sum": ("window_sum", _window),
    "select_and_scatter_add": ("window_max_gradient", _window),
    "triangular_solve": ("triangular_solve", _parameters(left_side="left_side")),
    "gather": (
        "gather",
        lambda equation: _GATHER(equation) | {"slice_sizes": equation.params["slice_sizes"]},
    ),
    **dict.fromkeys(
        ("scatter", "scatter-max", "scatter-min", "scatter-mul"),
        ("scatter", _dimension_numbers(*_SCATTER, adds=False)),
    ),
    "scatter-add": ("scatter", _dimension_numbers(*_SCATTER, adds=True)),
}


def has_rule(primitive: str) -> bool:
    """Whether a primitive can be sharded; without a rule it runs whole on every device."""
    return primitive in _KINDS


def rule_of(equation: JaxprEqn, *, masked: bool = True) -> Rule:
    """The sharding rule of an equation over its operands that are not literals.

    Args:
        equation: Any.
        masked: Whether what is indexed may be split, as devices can; microbatches cannot.
    """
    kind, attributes = _kind_of(equation)
    if kind in ("gather", "scatter"):
        attributes["masked"] = masked and can_mask(equation)
    rule = autoshard.rule_of(kind, *_shapes(equation), **attributes)
    return rule.without({i for i, atom in enumerate(equation.invars) if isinstance(atom, Literal)})


def flops_of(equation: JaxprEqn) -> float:
    """Floating-point operations: 2 a multiply-add of products, else one an element touched.

    Those of a loop are its body's in each iteration, in one if nobody knows how many there will be;
    those of branches are the dearest branch's.
    """
    name = equation.primitive.name
    if name not in _KINDS and (bodies := bodies_of(equation)):
        flops = [sum(map(flops_of, body.jaxpr.eqns)) for body in bodies]
        together = max(flops) if name == "cond" else sum(flops)
        return float(equation.params.get("length", 1) * together)
    kind, attributes = _kind_of(equation)
    count = autoshard.flops_of(kind, *_shapes(equation), **attributes)
    # The gradient of a strided convolution has holes in its data, with nothing to multiply.
    return count / math.prod(equation.params["lhs_dilation"]) if kind == "convolution" else count


def whole_share(equations: Iterable[JaxprEqn]) -> float:
    """The share of some equations' floating-point operations that run whole for lack of a rule."""
    return sum(shares_of_whole(equations).values())


def shares_of_whole(equations: Iterable[JaxprEqn]) -> dict[str, float]:
    """The same for each primitive without a rule, the largest first."""
    flops: dict[str, float] = defaultdict(float)
    for equation in equations:
        flops[equation.primitive.name] += flops_of(equation)
    total = sum(flops.values()) or 1.0
    whole = {name: count / total for name, count in flops.items() if not has_rule(name)}
    return dict(sorted(whole.items(), key=lambda item: (-item[1], item[0])))


def _kind_of(equation: JaxprEqn) -> tuple[str, dict[str, Any]]:
    """What autoshard calls a primitive, and the attributes that it asks for.

    A primitive without an entry gets a name that autoshard does not know.
    """
    name = equation.primitive.name
    if name not in _KINDS or (name == "reshape" and equation.params["dimensions"] is not None):
        return f"jax {name}", {}
    kind, attributes = _KINDS[name]
    return kind, attributes(equation)
