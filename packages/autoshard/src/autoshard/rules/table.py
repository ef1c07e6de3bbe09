"""The table "operator kind -> function that makes its rule", which all frontends share.

Kinds have their `jax.lax` names where it has them; attributes say dim where `jax.lax` says axis.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from autoshard.base.checks import checked
from autoshard.errors import RuleError
from autoshard.graph.rule import Rule
from autoshard.rules import (
    control,
    convolutions,
    creation,
    indexing,
    layers,
    movement,
    ordered,
    pointwise,
    products,
    reductions,
)
from autoshard.rules.factors import Shapes
from autoshard.rules.fallback import whole

RULES: dict[str, Callable[..., Rule]] = {
    # Elementwise: kinds that pass partial sums on, and kinds that do not.
    **dict.fromkeys(pointwise.NONLINEAR, pointwise.nonlinear),
    **dict.fromkeys(("add", "sub", "neg", "copy", "real", "imag"), pointwise.jointly_linear),
    "mul": pointwise.linear_in_each,
    **dict.fromkeys(("div", "derivative"), pointwise.linear_in_first),
    "select_n": pointwise.select,
    "integer_pow": pointwise.power,
    "convert": pointwise.convert,
    "bitcast": pointwise.bitcast,
    # Optimizer updates: (parameter, gradient, states, scalars) -> (parameter, states).
    **dict.fromkeys(("sgd", "momentum"), pointwise.jointly_linear),
    **dict.fromkeys(("adagrad", "adam", "adamw", "lion", "rmsprop"), pointwise.nonlinear),
    # Products.
    "einsum": products.contraction,
    "dot_general": products.dot_general,
    "convolution": convolutions.convolution,
    # Reductions. For a mean, every device divides by the number of elements of the whole tensor.
    **dict.fromkeys(("reduce_sum", "reduce_mean"), reductions.reducing("sum")),
    **dict.fromkeys(("reduce_max", "reduce_or"), reductions.reducing("max")),
    **dict.fromkeys(("reduce_min", "reduce_and"), reductions.reducing("min")),
    "reduce_prod": reductions.reducing("product"),
    # Pooling: the dims that the window moves along stay whole. The first operand of the gradient of
    # a max pooling is the gradient of the pooled result.
    "window": reductions.along,
    **dict.fromkeys(("window_sum", "window_max_gradient"), reductions.linear_along),
    **dict.fromkeys(("reduce", "argmax", "argmin", "logsumexp"), reductions.along),
    # Movement.
    "transpose": movement.transposed,
    "broadcast": movement.broadcasted,
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), movement.reshaped),
    **dict.fromkeys(("slice", "dynamic_slice"), movement.cut),
    "dynamic_update_slice": movement.update,
    "pad": movement.pad,
    "concatenate": movement.concatenate,
    "split": ordered.linear_one_dim,
    **dict.fromkeys(("rev", "roll"), reductions.linear_along),
    # Indices.
    "gather": indexing.gather,
    "scatter": indexing.scatter,
    "embedding": indexing.embedding,
    "embedding_gradient": indexing.embedding_gradient,
    "pick": indexing.pick,
    "pick_gradient": indexing.pick_gradient,
    "one_hot": indexing.one_hot,
    # Operators that go through a dim in order, or need whole matrices.
    **dict.fromkeys(("sort", "top_k", "cumprod", "cummax", "cummin"), ordered.one_dim),
    "cumlogsumexp": ordered.one_dim,
    "cumsum": ordered.linear_one_dim,
    "fft": reductions.linear_along,
    **dict.fromkeys(
        ("cholesky", "eig", "eigh", "factorization", "lu", "qr", "schur", "svd"),
        ordered.factorization,
    ),
    "triangular_solve": ordered.triangular_solve,
    # Operators that create arrays, from nothing or from a random key.
    **dict.fromkeys(("iota", "full", "random"), creation.created),
    "dropout": creation.dropout,
    # Layers.
    **dict.fromkeys(("softmax", "log_softmax"), reductions.along),
    **dict.fromkeys(("softmax_gradient", "log_softmax_gradient"), reductions.linear_along),
    **dict.fromkeys(("layer_norm", "rms_norm"), layers.norm),
    **dict.fromkeys(("layer_norm_gradient", "rms_norm_gradient"), layers.norm_gradient),
    "batch_norm": layers.batch_norm,
    "cross_entropy": layers.cross_entropy,
    "cross_entropy_gradient": layers.cross_entropy_gradient,
    "attention": layers.attention,
    "moe_dispatch": layers.moe_dispatch,
    "moe_combine": layers.moe_combine,
    # Control flow.
    "scan": control.rule_only(control.scan),
    "cond": control.rule_only(control.cond),
    "while": control.rule_only(control.while_loop),
}
"""By kind. Each function takes operand shapes, result shapes, and the operator's attributes."""


@checked
def rule_of(kind: str, operand_shapes: Shapes, result_shapes: Shapes, **attributes: Any) -> Rule:
    """The rule of an operator; an operator of an unknown kind is never split (`whole`).

    Args:
        kind: A key of `RULES`, or anything else.
        operand_shapes: Shapes of all operands, in order.
        result_shapes: Shapes of all results, in order.
        attributes: What else the rule depends on: the keyword arguments of the function in `RULES`.
            Those of an unknown kind are ignored.

    Raises:
        RuleError: attributes are missing or unknown, or no operator of this kind has such shapes.

    Examples:
        >>> str(rule_of("reduce_sum", ((4, 8),), ((4,),), dims=(1,)))
        '(a,b)->(a) {a=4, b=8 sum} linear {0}'
        >>> str(rule_of("no such kind", ((4, 8),), ((4,),)))
        '(a,b)->(c) {a=4 whole, b=8 whole, c=4 whole}'
    """
    if kind not in RULES:
        return whole(operand_shapes, result_shapes)
    make = RULES[kind]
    try:
        inspect.signature(make).bind(operand_shapes, result_shapes, **attributes)
    except TypeError as error:
        raise RuleError(
            f"the rule of {kind!r} takes other attributes: {error}; got {sorted(attributes)}"
        ) from None
    try:
        rule = make(operand_shapes, result_shapes, **attributes)
    except (IndexError, KeyError, StopIteration, ValueError, ZeroDivisionError) as error:
        # the message of a RuleError lists the arguments of a function in `RULES`; the user passed
        # more than these, so the message below, which lists all of it, replaces it
        misfit = error.__cause__ if isinstance(error, RuleError) else error
        if misfit is None:
            raise
        raise RuleError(
            f"no {kind!r} has operands of shapes {operand_shapes}, results {result_shapes} and "
            f"attributes {attributes}: {type(misfit).__name__}: {misfit}"
        ) from misfit
    for role, expected, shapes in (
        ("operand", rule.operand_shapes, operand_shapes),
        ("result", rule.result_shapes, result_shapes),
    ):
        if expected != tuple(map(tuple, shapes)):
            raise RuleError(
                f"with these attributes {kind!r} has {role} shapes {expected}; got {shapes}"
            )
    return rule
