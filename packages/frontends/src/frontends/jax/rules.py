"""The table "JAX primitive -> sharding rule", the only thing a new primitive needs.

A rule names the loop indices (*factors*) of an operator and says which dim of which operand and
result each one spans (`autoshard.Rule`). `rule_of` writes rules over all operands; operands that
are literals are dropped at the end, since they have no layout. A primitive without an entry gets
`autoshard.whole`: it runs unsharded, which is always right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import autoshard
from autoshard import Factor, Rule

from frontends.jax._compat import JaxprEqn, Literal, aval

Shape = tuple[int, ...]
Dims = tuple[tuple[int, ...], ...]
Linear = tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class _Factors:
    """Collects factors; each method returns the dim entry that spans the new one."""

    made: list[Factor] = field(default_factory=list)

    def _add(self, factor: Factor) -> tuple[int, ...]:
        self.made.append(factor)
        return (len(self.made) - 1,)

    def parallel(self, size: int) -> tuple[int, ...]:
        return self._add(Factor(size, "parallel"))

    def reduced(self, size: int, reduction: autoshard.Reduction = "sum") -> tuple[int, ...]:
        return self._add(Factor(size, "reduce", reduction))

    def whole(self, size: int) -> tuple[int, ...]:
        return self._add(Factor(size, "whole"))

    def rule(self, operands: Sequence[Dims], results: Sequence[Dims], linear: Linear = ()) -> Rule:
        return Rule(tuple(self.made), tuple(operands), tuple(results), linear)


def _shapes(equation: JaxprEqn) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    return (
        tuple(aval(v).shape for v in equation.invars),
        tuple(aval(v).shape for v in equation.outvars),
    )


def _elementwise(linear: Linear = ()) -> Callable[[JaxprEqn], Rule]:
    def make(equation: JaxprEqn) -> Rule:
        operands, (result,) = _shapes(equation)
        return autoshard.elementwise(operands, result, linear)

    return make


def _integer_pow(equation: JaxprEqn) -> Rule:
    return _elementwise(((0,),) if equation.params["y"] == 1 else ())(equation)


def _convert(equation: JaxprEqn) -> Rule:
    """Sums pass a conversion to a type at least as precise; parts would be rounded one by one."""
    before, after = aval(equation.invars[0]).dtype, aval(equation.outvars[0]).dtype
    is_exact = all(kind in "fc" for kind in (before.kind, after.kind)) or before == after
    return _elementwise(((0,),) if is_exact and after.itemsize >= before.itemsize else ())(equation)


def _bitcast(equation: JaxprEqn) -> Rule:
    (operand,), (result,) = _shapes(equation)
    return _elementwise()(equation) if operand == result else _whole(equation)


def _same_dims(
    equation: JaxprEqn, whole_dims: Sequence[int], linear: Linear = (), n_scalars: int = 0
) -> Rule:
    """Operands and results run over the same dims, of which `whole_dims` stay whole.

    Sizes along a whole dim may differ (split, concatenate, pad). The last `n_scalars` operands
    are scalars.
    """
    operands, results = _shapes(equation)
    factors = _Factors()
    shape = operands[0]
    shared = {d: factors.parallel(n) for d, n in enumerate(shape) if d not in whole_dims}

    def dims(shape: Shape) -> Dims:
        return tuple(shared[d] if d in shared else factors.whole(n) for d, n in enumerate(shape))

    full = [dims(shape) for shape in operands[: len(operands) - n_scalars]]
    return factors.rule([*full, *[()] * n_scalars], [dims(shape) for shape in results], linear)


def _along(parameter: str, linear: Linear = ()) -> Callable[[JaxprEqn], Rule]:
    """A rule for primitives that need one dim whole: cumulative sums, sorts, splits."""
    return lambda equation: _same_dims(equation, (equation.params[parameter],), linear)


def _concatenate(equation: JaxprEqn) -> Rule:
    every = tuple(range(len(equation.invars)))
    return _same_dims(equation, (equation.params["dimension"],), (every,))


def _rev(equation: JaxprEqn) -> Rule:
    return _same_dims(equation, equation.params["dimensions"], ((0,),))


def _pad(equation: JaxprEqn) -> Rule:
    padded = [d for d, p in enumerate(equation.params["padding_config"]) if tuple(p) != (0, 0, 0)]
    value = equation.invars[1]
    adds_zeros = isinstance(value, Literal) and value.val == 0
    return _same_dims(equation, padded, ((0,),) if adds_zeros else (), n_scalars=1)


def _changed_dims(before: Shape, after: Shape) -> list[int]:
    return [d for d, (n, m) in enumerate(zip(before, after, strict=True)) if n != m]


def _slice(equation: JaxprEqn) -> Rule:
    (operand, *_), (result,) = _shapes(equation)
    return _same_dims(equation, _changed_dims(operand, result), ((0,),))


def _dynamic_slice(equation: JaxprEqn) -> Rule:
    (operand, *starts), (result,) = _shapes(equation)
    return _same_dims(equation, _changed_dims(operand, result), ((0,),), n_scalars=len(starts))


def _dynamic_update_slice(equation: JaxprEqn) -> Rule:
    (operand, update, *starts), _ = _shapes(equation)
    whole_dims = _changed_dims(operand, update)
    return _same_dims(equation, whole_dims, ((0, 1),), n_scalars=len(starts))


def _reduction(kind: autoshard.Reduction) -> Callable[[JaxprEqn], Rule]:
    def make(equation: JaxprEqn) -> Rule:
        ((operand,), _) = _shapes(equation)
        return autoshard.reduction(operand, tuple(equation.params["axes"]), kind)

    return make


def _whole_reduction(equation: JaxprEqn) -> Rule:
    """A reduction that has no collective of its own: the reduced dims stay whole."""
    ((operand, *_), results) = _shapes(equation)
    factors = _Factors()
    axes = equation.params["axes"]
    dims = tuple(
        factors.whole(n) if d in axes else factors.parallel(n) for d, n in enumerate(operand)
    )
    kept = tuple(dim for d, dim in enumerate(dims) if d not in axes)
    return factors.rule([dims] * len(equation.invars), [kept] * len(results))


def _transpose(equation: JaxprEqn) -> Rule:
    ((operand,), _) = _shapes(equation)
    return autoshard.transpose(operand, tuple(equation.params["permutation"]))


def _reshape(equation: JaxprEqn) -> Rule:
    (operand, *_), (result,) = _shapes(equation)
    if equation.params.get("dimensions") is not None:
        return _whole(equation)
    return autoshard.reshape(operand, result)


def _squeeze(equation: JaxprEqn) -> Rule:
    ((operand,), (result,)) = _shapes(equation)
    return autoshard.reshape(operand, result)


def _broadcast_in_dim(equation: JaxprEqn) -> Rule:
    (operand, *_), (result,) = _shapes(equation)
    return autoshard.broadcast(operand, result, tuple(equation.params["broadcast_dimensions"]))


def _iota(equation: JaxprEqn) -> Rule:
    factors = _Factors()
    return factors.rule([], [tuple(factors.parallel(n) for n in equation.params["shape"])])


def _dot_general(equation: JaxprEqn) -> Rule:
    (left, right), _ = _shapes(equation)
    (left_sum, right_sum), (left_batch, right_batch) = equation.params["dimension_numbers"]
    factors = _Factors()
    left_dims: dict[int, tuple[int, ...]] = {}
    right_dims: dict[int, tuple[int, ...]] = {}
    for i, j in zip(left_batch, right_batch, strict=True):
        left_dims[i] = right_dims[j] = factors.parallel(left[i])
    result = [left_dims[i] for i in left_batch]
    for i, j in zip(left_sum, right_sum, strict=True):
        left_dims[i] = right_dims[j] = factors.reduced(left[i])
    for shape, dims in ((left, left_dims), (right, right_dims)):
        for d, n in enumerate(shape):
            if d not in dims:
                dims[d] = factors.parallel(n)
                result.append(dims[d])
    operands = [tuple(dims[d] for d in range(len(dims))) for dims in (left_dims, right_dims)]
    return factors.rule(operands, [tuple(result)], ((0,), (1,)))


def _conv(equation: JaxprEqn) -> Rule:
    """Batch, input and output channels may be sharded; space and groups stay whole."""
    (data, kernel), (result,) = _shapes(equation)
    numbers = equation.params["dimension_numbers"]
    grouped = equation.params["feature_group_count"] * equation.params["batch_group_count"] != 1
    factors = _Factors()
    batch = factors.parallel(data[numbers.lhs_spec[0]])
    kernel_out, kernel_in = kernel[numbers.rhs_spec[0]], kernel[numbers.rhs_spec[1]]
    features = factors.whole(kernel_out) if grouped else factors.parallel(kernel_out)
    channels = None if grouped else factors.reduced(kernel_in)

    def dims(shape: Shape, spec: Sequence[int], first: Any, second: Any) -> Dims:
        entries = {spec[0]: first, spec[1]: second}
        return tuple(entries.get(d) or factors.whole(n) for d, n in enumerate(shape))

    return factors.rule(
        [
            dims(data, numbers.lhs_spec, batch, channels),
            dims(kernel, numbers.rhs_spec, features, channels),
        ],
        [dims(result, numbers.out_spec, batch, features)],
        ((0,), (1,)),
    )


def _gather(equation: JaxprEqn) -> Rule:
    """Index dims and fully copied window dims are parallel; indexed dims stay whole."""
    (operand, indices), (result,) = _shapes(equation)
    numbers = equation.params["dimension_numbers"]
    sizes = equation.params["slice_sizes"]
    factors = _Factors()
    index_dims = tuple(factors.parallel(n) for n in indices[:-1])
    batching = dict(
        zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    )
    outer = iter(index_dims)
    windows = iter(
        d for d in range(len(operand)) if d not in (*numbers.collapsed_slice_dims, *batching)
    )
    operand_dims = {d: index_dims[i] for d, i in batching.items()}
    result_dims: list[tuple[int, ...]] = []
    for d, n in enumerate(result):
        if d not in numbers.offset_dims:
            result_dims.append(next(outer))
            continue
        window = next(windows)
        if sizes[window] == operand[window] and window not in numbers.start_index_map:
            operand_dims[window] = factors.parallel(n)
            result_dims.append(operand_dims[window])
        else:
            result_dims.append(factors.whole(n))
    source = tuple(operand_dims.get(d) or factors.whole(n) for d, n in enumerate(operand))
    return factors.rule(
        [source, (*index_dims, factors.whole(indices[-1]))], [tuple(result_dims)], ((0,),)
    )


def _scatter(adds: bool) -> Callable[[JaxprEqn], Rule]:
    """The transpose of `_gather`; scatter-add sums over index dims, other kinds keep them whole.

    When such a sum is sharded, the operand counts once: the lowering zeroes it on all devices of
    an axis but the first.
    """

    def make(equation: JaxprEqn) -> Rule:
        (operand, indices, updates), _ = _shapes(equation)
        numbers = equation.params["dimension_numbers"]
        factors = _Factors()
        batching = dict(
            zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
        )

        def index_factor(dim: int, size: int) -> tuple[int, ...]:
            if dim in batching.values():
                return factors.parallel(size)
            return factors.reduced(size) if adds else factors.whole(size)

        index_dims = tuple(index_factor(i, n) for i, n in enumerate(indices[:-1]))
        operand_dims = {d: index_dims[i] for d, i in batching.items()}
        outer = iter(index_dims)
        windows = iter(
            d for d in range(len(operand)) if d not in (*numbers.inserted_window_dims, *batching)
        )
        update_dims: list[tuple[int, ...]] = []
        for d, n in enumerate(updates):
            if d not in numbers.update_window_dims:
                update_dims.append(next(outer))
                continue
            window = next(windows)
            if n == operand[window] and window not in numbers.scatter_dims_to_operand_dims:
                operand_dims[window] = factors.parallel(n)
                update_dims.append(operand_dims[window])
            else:
                update_dims.append(factors.whole(n))
        target = tuple(operand_dims.get(d) or factors.whole(n) for d, n in enumerate(operand))
        return factors.rule(
            [target, (*index_dims, factors.whole(indices[-1])), tuple(update_dims)],
            [target],
            ((0, 2),) if adds else (),
        )

    return make


def _whole(equation: JaxprEqn) -> Rule:
    return autoshard.whole(*_shapes(equation))


# fmt: off
_NONLINEAR = [
    "abs", "and", "asin", "atan", "atan2", "atanh", "acos", "acosh", "asinh", "cbrt", "ceil",
    "clamp", "cos", "cosh", "digamma", "eq", "erf", "erfc", "erf_inv", "exp", "exp2", "expm1",
    "floor", "ge", "gt", "is_finite", "le", "lgamma", "log", "log1p", "logistic", "lt", "max",
    "min", "ne", "nextafter", "not", "or", "population_count", "pow", "reduce_precision", "rem",
    "round", "rsqrt", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign",
    "sin", "sinh", "sqrt", "square", "tan", "tanh", "xor",
]
# fmt: on

_RULES: dict[str, Callable[[JaxprEqn], Rule]] = {
    **dict.fromkeys(_NONLINEAR, _elementwise()),
    **dict.fromkeys(
        ("neg", "copy", "copy_p", "name", "real", "imag", "stop_gradient"), _elementwise(((0,),))
    ),
    **dict.fromkeys(("add", "add_any", "sub"), _elementwise(((0, 1),))),
    "mul": _elementwise(((0,), (1,))),
    "div": _elementwise(((0,),)),
    "select_n": lambda equation: _elementwise((tuple(range(1, len(equation.invars))),))(equation),
    "integer_pow": _integer_pow,
    "convert_element_type": _convert,
    "bitcast_convert_type": _bitcast,
    "dot_general": _dot_general,
    "conv_general_dilated": _conv,
    "transpose": _transpose,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "broadcast_in_dim": _broadcast_in_dim,
    "iota": _iota,
    "reduce_sum": _reduction("sum"),
    "reduce_max": _reduction("max"),
    "reduce_min": _reduction("min"),
    **dict.fromkeys(
        ("reduce_prod", "reduce_and", "reduce_or", "argmax", "argmin"), _whole_reduction
    ),
    "cumsum": _along("axis", ((0,),)),
    **dict.fromkeys(("cumprod", "cummax", "cummin", "cumlogsumexp"), _along("axis")),
    "sort": _along("dimension"),
    "split": _along("axis", ((0,),)),
    "concatenate": _concatenate,
    "rev": _rev,
    "pad": _pad,
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter-add": _scatter(adds=True),
    "scatter": _scatter(adds=False),
}


def has_rule(primitive: str) -> bool:
    """Whether a primitive can be sharded; without a rule it runs whole on every device."""
    return primitive in _RULES


def rule_of(equation: JaxprEqn) -> Rule:
    """The sharding rule of an equation over its operands that are not literals.

    Where an operand that an operator is jointly linear in is a literal, sums may not pass:
    `x + 1` of partial sums would add one per device.
    """
    rule = _RULES.get(equation.primitive.name, _whole)(equation)
    kept = [i for i, atom in enumerate(equation.invars) if not isinstance(atom, Literal)]
    if len(kept) == len(equation.invars):
        return rule
    place = {old: new for new, old in enumerate(kept)}
    linear = tuple(
        tuple(place[i] for i in group) for group in rule.linear if all(i in place for i in group)
    )
    return Rule(rule.factors, tuple(rule.operands[i] for i in kept), rule.results, linear)


def flops_of(equation: JaxprEqn) -> float:
    """Floating-point operations: 2 a multiply-add of products, else one an element touched."""
    operands, results = _shapes(equation)
    sizes = [math.prod(shape) for shape in (*operands, *results)]
    if equation.primitive.name == "dot_general":
        (left_sum, _), _ = equation.params["dimension_numbers"]
        return float(2 * math.prod(results[0]) * math.prod(operands[0][d] for d in left_sum))
    if equation.primitive.name == "conv_general_dilated":
        kernel = operands[1]
        features = kernel[equation.params["dimension_numbers"].rhs_spec[0]]
        return float(2 * math.prod(results[0]) * math.prod(kernel) / max(1, features))
    return float(max(sizes, default=0))
