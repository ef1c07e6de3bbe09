"""The table "aten operator -> entry"; a new operator needs nothing else.

The rules are autoshard's, one table for all frontends (`autoshard.RULES`). An entry here says which
of them an operator has, which of the operator's arguments the rule needs, and which arguments hold
shapes. An operator that does the work of several of autoshard's, such as a norm with its
statistics, has a rule in einsum notation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autoshard
from autoshard import Rule, elementwise

from frontends.base import row_products
from frontends.base.rule_table import OperatorEntry
from frontends.torch.base.described import Described
from frontends.torch.rules import (
    complex_rules,
    ctc,
    grouped_products,
    layer_rules,
    parts,
    place_rules,
    sorted_rows,
)

MakeRule = Callable[[Described], Rule]


def _kind(kind: str, attributes: Callable[[Described], dict[str, Any]] | None = None) -> MakeRule:
    """Return the rule of an operator that has the operands and results of autoshard's `kind`."""

    def rule(d: Described) -> Rule:
        keywords = {} if attributes is None else attributes(d)
        return autoshard.rule_of(kind, d.operands, d.results, **keywords)

    return rule


def _product_of_matrices(formula: str) -> OperatorEntry[Described]:
    """Return the entry of a contraction: 2 FLOP for each multiply-add."""

    def flops(d: Described) -> float:
        return autoshard.flops_of("einsum", d.operands, d.results, formula=formula)

    return OperatorEntry(_kind("einsum", lambda d: {"formula": formula}), flops)


def _dims(d: Described) -> dict[str, Any]:
    return {"dims": d.dims()}


def _dim(d: Described) -> dict[str, Any]:
    return {"dim": d.dim()}


def _last(n: int) -> Callable[[Described], dict[str, Any]]:
    """Return a function that gives the last `n` dims of the first operand."""

    def dims(d: Described) -> dict[str, Any]:
        rank = len(d.operands[0])
        return {"dims": tuple(range(rank - n, rank))}

    return dims


def _nonlinear(d: Described) -> Rule:
    return elementwise(d.operands, d.results[0], n_results=len(d.results))


def _gradients(d: Described) -> Rule:
    """Return an elementwise rule that is linear in the first operand, the gradient."""
    return elementwise(d.operands, d.results[0], ((0,),), n_results=len(d.results))


def _linear_in(*names: str) -> MakeRule:
    """Return an elementwise rule, jointly linear in these arguments if all of them are tensors."""

    def rule(d: Described) -> Rule:
        places = [d.place(name) for name in names]
        linear = () if None in places else (tuple(p for p in places if p is not None),)
        return elementwise(d.operands, d.results[0], linear, n_results=len(d.results))

    return rule


def _product(d: Described) -> Rule:
    return elementwise(d.operands, d.results[0], tuple((i,) for i in range(len(d.operands))))


def _quotient(d: Described) -> Rule:
    is_exact = not d.call.has("rounding_mode") or d.call.argument("rounding_mode") is None
    is_linear = is_exact and d.place("self") is not None
    return elementwise(d.operands, d.results[0], ((0,),) if is_linear else ())


def _masked_fill(d: Described) -> Rule:
    is_linear = d.place("value") is None and d.call.argument("value") == 0
    return elementwise(d.operands, d.results[0], ((0,),) if is_linear else ())


def _conversion(d: Described) -> dict[str, Any]:
    """Return whether a conversion is exact, so that partial sums pass.

    It is if the types are equal, or both floating-point and the new one is at least as large.
    """
    before, after = d.operand_dtypes[0], d.result_dtypes[0]
    is_float = before.is_floating_point and after.is_floating_point
    return {"exact": before == after or (is_float and after.itemsize >= before.itemsize)}


def _expand(d: Described) -> dict[str, Any]:
    rank = len(d.results[0])
    return {"dims": tuple(range(rank - len(d.operands[0]), rank))}


def _permutation(d: Described) -> dict[str, Any]:
    rank = len(d.operands[0])
    order = list(range(rank))
    if d.call.name == "permute":
        order = list(d.dims("dims"))
    elif rank > 1:
        pair = (d.dims("dim0")[0], d.dims("dim1")[0]) if d.call.has("dim0") else (0, 1)
        order[pair[0]], order[pair[1]] = pair[1], pair[0]
    return {"permutation": tuple(order)}


def _padded(d: Described) -> dict[str, Any]:
    rank, pad = len(d.operands[0]), d.call.argument("pad")
    dims = {rank - 1 - i // 2 for i, n in enumerate(pad) if n}
    return {"dims": tuple(sorted(dims)), "zeros": d.call.argument("value") == 0}


# fmt: off
_NONLINEAR = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and", "bitwise_not",
    "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "ceil", "celu",
    "clamp", "clamp_max", "clamp_min", "copysign", "cos", "cosh", "digamma", "elu", "eq", "erf",
    "erfc", "erfinv", "exp", "exp2", "expm1", "fake_quantize_per_tensor_affine_cachemask", "floor",
    "floor_divide", "fmax", "fmin", "fmod", "frac", "frexp", "gcd", "ge", "gelu", "gt",
    "hardsigmoid", "hardswish", "hardtanh", "heaviside", "hypot", "i0", "igamma", "igammac",
    "isfinite", "isinf", "isnan", "lcm", "ldexp", "le", "leaky_relu", "lgamma", "log", "log10",
    "log1p", "log2", "log_sigmoid_forward", "logaddexp", "logaddexp2", "logical_and", "logical_not",
    "logical_or", "logical_xor", "logit", "lt", "maximum", "minimum", "mish", "mvlgamma",
    "nan_to_num", "ne", "nextafter", "polygamma", "pow", "_prelu_kernel", "reciprocal", "relu",
    "relu6", "remainder", "round", "rsqrt", "sigmoid", "sign", "sgn", "silu", "sin", "sinc", "sinh",
    "softplus", "special_erfcx", "special_i0e", "special_i1", "special_i1e", "special_log_ndtr",
    "special_ndtri", "special_zeta", "sqrt", "square", "tan", "tanh", "threshold", "trunc", "xlogy",
)
"""Elementwise operators that are not linear: partial sums do not pass through them."""

_GRADIENTS = (
    "celu_backward", "gelu_backward", "hardsigmoid_backward", "hardswish_backward",
    "hardtanh_backward", "log_sigmoid_backward", "mish_backward", "sigmoid_backward",
    "silu_backward", "softplus_backward", "tanh_backward", "threshold_backward", "elu_backward",
    "leaky_relu_backward", "logit_backward",
)
"""Elementwise operators that are linear in the first operand, the gradient."""

_POOLINGS = (
    "avg_pool2d", "_adaptive_avg_pool2d", "upsample_nearest2d", "upsample_bilinear2d",
    "upsample_bicubic2d", "avg_pool2d_backward", "_adaptive_avg_pool2d_backward",
    "max_pool2d_with_indices_backward", "tril", "triu",
    "adaptive_max_pool2d_backward", "reflection_pad2d", "reflection_pad2d_backward",
    "replication_pad2d", "replication_pad2d_backward",
)
"""Operators along the last two dims that are linear in the first operand."""

_OF_THREE = (
    "avg_pool3d", "avg_pool3d_backward", "max_pool3d_with_indices_backward", "pixel_shuffle",
    "pixel_unshuffle", "reflection_pad3d", "reflection_pad3d_backward", "replication_pad3d",
    "replication_pad3d_backward", "upsample_nearest3d", "upsample_trilinear3d",
)
"""Operators along the last three dims that are linear in the first operand."""

_OF_ONE = (
    "reflection_pad1d", "reflection_pad1d_backward", "replication_pad1d",
    "replication_pad1d_backward", "upsample_nearest1d", "upsample_linear1d",
)
"""Operators along the last dim that are linear in the first operand."""
# fmt: on

_RULES: dict[str, MakeRule] = {
    **dict.fromkeys(_NONLINEAR, _nonlinear),
    **dict.fromkeys(_GRADIENTS, _kind("derivative")),
    **dict.fromkeys(("add", "sub", "rsub"), _linear_in("self", "other")),
    "_prelu_kernel_backward": _gradients,
    "neg": _kind("neg"),
    "_conj_physical": _kind("neg"),
    "mul": _product,
    "div": _quotient,
    "where": _linear_in("self", "other"),
    "lerp": _linear_in("self", "end"),
    "addcmul": _linear_in("self", "tensor1"),
    "addcdiv": _linear_in("self", "tensor1"),
    "masked_fill": _masked_fill,
    "_to_copy": _kind("convert", _conversion),
    # Complex numbers.
    **dict.fromkeys(("view_as_real", "view_as_complex"), complex_rules.pair),
    "complex": complex_rules.joined,
    "polar": _nonlinear,
    "angle": _nonlinear,
    # Reductions.
    "sum": _kind("reduce_sum", _dims),
    "amax": _kind("reduce_max", _dims),
    "amin": _kind("reduce_min", _dims),
    **dict.fromkeys(
        ("any", "all", "prod", "argmax", "argmin", "nansum", "count_nonzero"),
        _kind("reduce", _dims),
    ),
    **dict.fromkeys(("max", "min", "mode", "median", "nanmedian", "kthvalue"), place_rules.extreme),
    # Movement.
    **dict.fromkeys(("t", "transpose", "permute"), _kind("transpose", _permutation)),
    "slice": _kind("slice"),
    **dict.fromkeys(
        ("select", "split", "split_with_sizes", "unbind", "cumsum"), _kind("split", _dim)
    ),
    "constant_pad_nd": _kind("pad", _padded),
    "cat": _kind("concatenate", lambda d: {"dim": d.dim()}),
    **dict.fromkeys(("flip", "roll"), _kind("rev", lambda d: {"dims": d.dims("dims")})),
    "slice_scatter": place_rules.slice_scatter,
    "select_scatter": place_rules.select_scatter,
    # Indices.
    "embedding": place_rules.embedding,
    "index": place_rules.index,
    "index_put": place_rules.index_put,
    "index_select": place_rules.index_select,
    "index_add": place_rules.index_add,
    "gather": place_rules.gather,
    "histc": place_rules.histogram,
    **dict.fromkeys(("scatter", "scatter_add"), place_rules.scatter),
    # In order along a dim, or all of it at once.
    **dict.fromkeys(
        ("sort", "topk", "cumprod", "cummax", "cummin", "logcumsumexp"), _kind("sort", _dim)
    ),
    **dict.fromkeys(("_softmax", "_safe_softmax"), _kind("softmax", _dims)),
    "_softmax_backward_data": _kind("softmax_gradient", _dims),
    # Layers.
    "native_layer_norm": layer_rules.layer_norm,
    "native_layer_norm_backward": layer_rules.layer_norm_gradient,
    "max_pool2d_with_indices": _kind("window", _last(2)),
    "adaptive_max_pool2d": _kind("window", _last(2)),
    "max_pool3d_with_indices": _kind("window", _last(3)),
    **dict.fromkeys(_OF_ONE, _kind("window_sum", _last(1))),
    **dict.fromkeys(_POOLINGS, _kind("window_sum", _last(2))),
    **dict.fromkeys(_OF_THREE, _kind("window_sum", _last(3))),
    "glu": _kind("window", _dims),
    "glu_backward": _kind("window_sum", _dims),
}
"""Rules of operators that touch each element once, and whose arguments hold no shapes."""

ENTRIES: dict[str, OperatorEntry[Described]] = {
    **{name: OperatorEntry(rule) for name, rule in _RULES.items()},
    "mm": _product_of_matrices("ik,kj->ij"),
    "bmm": _product_of_matrices("bik,bkj->bij"),
    "grouped_mm": OperatorEntry(grouped_products.rule, grouped_products.flops),
    "take_rows": OperatorEntry(sorted_rows.taken),
    "add_rows": OperatorEntry(sorted_rows.added),
    "count_rows": OperatorEntry(sorted_rows.counted),
    "multiply_rows": OperatorEntry(row_products.rows_multiplied, row_products.flops),
    "multiply_groups": OperatorEntry(row_products.groups_multiplied, row_products.flops),
    **dict.fromkeys(
        ("_fft_c2c", "_fft_r2c", "_fft_c2r"),
        OperatorEntry(complex_rules.transform, complex_rules.transform_flops),
    ),
    **dict.fromkeys(("ctc", "ctc_gradient"), OperatorEntry(ctc.rule, ctc.flops)),
    "convolution": OperatorEntry(
        layer_rules.convolution, layer_rules.convolution_flops, parts.convolution
    ),
    "convolution_backward": OperatorEntry(
        layer_rules.convolution_gradient,
        layer_rules.convolution_flops,
        parts.convolution_gradient,
    ),
    "_scaled_dot_product_flash_attention_for_cpu": OperatorEntry(
        layer_rules.attention, layer_rules.attention_flops, sends=True
    ),
    "_scaled_dot_product_flash_attention_for_cpu_backward": OperatorEntry(
        layer_rules.attention_gradient, layer_rules.attention_flops, sends=True
    ),
    "native_group_norm": OperatorEntry(layer_rules.group_norm, part=parts.group_norm),
    "native_group_norm_backward": OperatorEntry(
        layer_rules.group_norm_gradient, part=parts.group_norm
    ),
    "reshape": OperatorEntry(_kind("reshape"), part=parts.shape_as("shape")),
    "expand": OperatorEntry(_kind("broadcast", _expand), part=parts.shape_as("size")),
    "select_backward": OperatorEntry(
        place_rules.select_gradient, part=parts.shape_as("input_sizes")
    ),
    "slice_backward": OperatorEntry(
        _kind("pad", lambda d: {"dims": d.dims(rank=len(d.results[0])), "zeros": True}),
        part=parts.shape_as("input_sizes"),
    ),
    **{
        f"upsample_{how}_backward": OperatorEntry(
            _kind("window_sum", _last(n)), part=parts.shape_as("input_size")
        )
        for how, n in (
            ("nearest1d", 1),
            ("linear1d", 1),
            ("nearest2d", 2),
            ("bilinear2d", 2),
            ("bicubic2d", 2),
            ("nearest3d", 3),
            ("trilinear3d", 3),
        )
    },
    "strided": OperatorEntry(place_rules.strided, part=parts.shape_as("size")),
    "strided_scatter": OperatorEntry(place_rules.strided_scatter, part=parts.view),
    "embedding_dense_backward": OperatorEntry(place_rules.embedding_gradient, part=parts.rows),
    # Created without operands.
    "arange": OperatorEntry(_kind("full")),
    "full": OperatorEntry(_kind("full"), part=parts.shape_as("size")),
    "empty_strided": OperatorEntry(_kind("full"), part=parts.strided),
}
