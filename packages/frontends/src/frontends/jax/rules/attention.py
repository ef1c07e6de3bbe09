"""Attention as an operator of its own: its rule, its cost, and how a device runs its part.

A device that has some of the rows counts them from its first one, so that a causal mask is the
whole's. The axes that split rows are context parallelism. Either keys and values are gathered along
them, and their gradients, which are sums over rows, are scattered; or these axes split keys and
values as well, and the parts go round in a ring (`frontends.jax.trace.attention_parts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from autoshard import Rule
from autoshard.rules import Factors
from jax import lax

from frontends.jax.base import attention_rows, cudnn
from frontends.jax.base.attention import Attention, attend, attend_backward
from frontends.jax.base.described import Described
from frontends.jax.rules.custom_op import custom_op

Array = Any


@custom_op
def meshwright_attention(*operands: Array, how: Attention) -> list[Array]:
    """The result of attention, and the statistics that its gradient reads."""
    return forward(operands, how)


@custom_op
def meshwright_attention_gradient(*operands: Array, how: Attention) -> list[Array]:
    """The gradients of queries, keys and values, and of the bias if there is one to return."""
    return backward(operands, how)


def forward(operands: Sequence[Array], how: Attention, first_row: Array | None = None) -> list[Any]:
    """Run forward on the device that the program is compiled for: by cuDNN where there is one.

    Args:
        operands: Those of `meshwright_attention`.
        how: What to compute.
        first_row: The number of the first row; None if these are all.
    """
    return _run((attend, cudnn.forward, attention_rows.forward), operands, how, first_row)


def backward(
    operands: Sequence[Array], how: Attention, first_row: Array | None = None
) -> list[Any]:
    """Run the gradient; see `forward`."""
    return _run(
        (attend_backward, cudnn.backward, attention_rows.backward), operands, how, first_row
    )


def _run(
    ways: tuple[Any, Any, Any],
    operands: Sequence[Array],
    how: Attention,
    first_row: Array | None,
) -> list[Any]:
    """Run attention by a program, by a kernel, or by a kernel for blocks of the rows."""
    program, kernel, in_blocks = ways
    plain = partial(program, how=how, first_row=0 if first_row is None else first_row)
    by_kernel = partial(kernel, how=how)
    is_possible = cudnn.can_run(operands[0].dtype)
    if first_row is not None:
        is_possible &= attention_rows.can_take_blocks(how, *operands[:2])
        by_kernel = partial(in_blocks, kernel, how=how, first_row=first_row)
    if not is_possible:
        return list(plain(operands))
    return list(lax.platform_dependent(operands, cuda=by_kernel, default=plain))


def rule(d: Described) -> Rule:
    """The rule of attention: examples, heads and rows are parallel, keys are whole."""
    return _rule(d, d.attributes["how"], is_gradient=False)


def gradient_rule(d: Described) -> Rule:
    """The rule of its gradient, which is linear in the result's gradient."""
    return _rule(d, d.attributes["how"], is_gradient=True)


def is_balanced(how: Attention, rows: int, keys: int) -> bool:
    """Whether devices that share the rows exchange halves of their heads, to have as much work."""
    return _is_triangle(how, rows, keys) and not how.has_bias


def _is_triangle(how: Attention, rows: int, keys: int) -> bool:
    return how.is_causal and how.window is None and rows <= keys


def _rule(d: Described, how: Attention, *, is_gradient: bool) -> Rule:
    (b, t, n, h), (_, s, k, _), (*_, e) = d.operands[:3]
    shape_of_bias = d.operands[3] if how.has_bias else ()
    factors, halves = Factors(), is_balanced(how, t, s)

    def summed(size: int, is_summed: bool) -> tuple[int, ...]:
        make = factors.reduced if is_gradient and is_summed else factors.parallel
        return make(size, halves=halves)

    is_shared = how.bias_gradient and shape_of_bias[0] == 1
    batch = summed(b, is_shared)
    is_shared = how.bias_gradient and shape_of_bias[1] == 1
    group, head = summed(k, is_shared), summed(n // k, True)
    make = factors.reduced if is_gradient else factors.parallel
    can_split = d.masked or not how.is_by_place
    rows = make(t, rises=_is_triangle(how, t, s)) if can_split else factors.whole(t)
    columns, width, of_values = map(factors.whole, (s, h, e))
    queries = (batch, rows, group + head, width)
    keys, values = (batch, columns, group, width), (batch, columns, group, of_values)
    every = (batch, group + head, rows, columns)
    of_bias = tuple(() if n == 1 else dim for dim, n in zip(every, shape_of_bias, strict=False))
    bias = [of_bias] * how.has_bias
    read = [queries, keys, values, *bias, *[(batch,)] * (2 * how.has_lengths)]
    statistics, result = every[:3], (batch, rows, group + head, of_values)
    can_turn = can_split and t == s and not (how.has_bias or how.has_lengths)
    rings = [(rows, columns)] * can_turn
    if not is_gradient:
        return factors.rule(read, [result, statistics], rings=rings)
    made = [queries, keys, values, *bias * how.bias_gradient]
    linear = ((how.n_operands + 2,),)
    return factors.rule([*read, statistics, result, result], made, linear, rings)


def flops(d: Described) -> float:
    """The FLOP of the pairs that a fused kernel computes: two products, and five for gradients.

    Reference: Dao, "FlashAttention-2", arXiv 2307.08691, section 4.1.
    """
    how: Attention = d.attributes["how"]
    (b, t, n, h), (_, s, _, _), (*_, e) = d.operands[:3]
    products = 2.0 if d.equation.primitive is meshwright_attention.primitive else 5.0
    return products * b * n * how.pairs(t, s) * (h + e)
