"""Which JAX primitives XLA takes together in one kernel; see `frontends.step.kernels`."""

from __future__ import annotations

from frontends.step.kernels import KernelMaker
from frontends.step.step import IDENTITY

# fmt: off
_ELEMENTWISE = (
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh",
    "bessel_i0e", "bessel_i1e", "cbrt", "ceil", "clamp", "clz", "complex", "conj",
    "convert_element_type", "copy", "cos", "cosh", "digamma", "div", "eq", "erf", "erf_inv",
    "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "imag", "integer_pow", "is_finite", "le",
    "lgamma", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter",
    "not", "one_minus_square", "or", "polygamma", "population_count", "pow", "real",
    "reduce_precision", "rem", "round", "rsqrt", "select_n", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt", "square",
    "sub", "tan", "tanh", "threefry2x32", "xor", "zeta",
)
# fmt: on

XLA = KernelMaker(
    "XLA",
    views=frozenset(
        (
            *("reshape", "squeeze", "expand_dims", "split", "bitcast_convert_type"),
            *("copy_p", "name", "stop_gradient", IDENTITY),
        )
    ),
    loops=frozenset(
        (*_ELEMENTWISE, "broadcast_in_dim", "iota", "transpose", "concatenate", "pad", "rev")
    ),
    parts=frozenset(("slice", "dynamic_slice", "gather")),
    reductions=frozenset(
        (
            *("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"),
            *("argmax", "argmin"),
        )
    ),
    products=frozenset(("dot_general",)),
)
"""XLA, which JAX compiles every program with. Slices of a value, as `split` makes them, are read
where they lie."""
