"""Rules of layers that aten has as one operator, with what their gradients need."""

from __future__ import annotations

import autoshard
from autoshard import Rule, labelled
from autoshard.rules import Factors

from frontends.torch.base.described import Described, letters

Shape = tuple[int, ...]


def layer_norm(d: Described) -> Rule:
    """The array, its means and reciprocal deviations; the normalised dims stay whole."""
    rank, n = len(d.operands[0]), len(d.call.argument("normalized_shape"))
    every = letters(rank)
    normalised = every[rank - n :]
    words = [every, *[normalised] * (len(d.operands) - 1)]
    formula = ",".join(words) + f"->{every},{every},{every}"
    return labelled(formula, d.operands, d.results, whole=normalised)


def layer_norm_gradient(d: Described) -> Rule:
    """Gradients by array, scale and shift; those of scale and shift are sums over examples."""
    rank, n = len(d.operands[1]), len(d.call.argument("normalized_shape"))
    every = letters(rank)
    normalised = every[rank - n :]
    words = [every] * 4 + [normalised] * (len(d.operands) - 4)
    made = [every if len(shape) == rank else normalised for shape in d.results]
    formula = ",".join(words) + "->" + ",".join(made)
    return labelled(formula, d.operands, d.results, whole=normalised, linear=((0,),))


def group_norm(d: Described) -> Rule:
    """As `layer_norm` over groups of channels; examples are parallel."""
    every = letters(len(d.operands[0]), "ng")
    array = "n" + every[1:]
    words = [array, *[every[1]] * (len(d.operands) - 1)]
    formula = ",".join(words) + f"->{array},ng,ng"
    return labelled(formula, d.operands, d.results, whole=every[1:] + "g")


def group_norm_gradient(d: Described) -> Rule:
    """Gradients by array, scale and shift."""
    every = letters(len(d.operands[0]), "ng")
    array = "n" + every[1:]
    words = [array, array, "ng", "ng", *[every[1]] * (len(d.operands) - 4)]
    made = [array if len(shape) > 1 else every[1] for shape in d.results]
    formula = ",".join(words) + "->" + ",".join(made)
    return labelled(formula, d.operands, d.results, whole=every[1:] + "g", linear=((0,),))


def attention(d: Described) -> Rule:
    """Queries, keys, values and perhaps a mask to the result and its normalisers.

    Examples and heads are parallel; a mask may be shared by them, and keys by groups of queries'
    heads.
    """
    dims = _AttentionDims(d, d.operands[0], d.operands[1], d.operands[2], sums_heads=False)
    result = (dims.queries[0], dims.queries[1], dims.queries[2], dims.values[3])
    operands = [dims.queries, dims.keys, dims.values, *dims.masks]
    return dims.factors.rule(operands, [result, dims.queries[:3]])


def attention_gradient(d: Described) -> Rule:
    """Gradients by queries, keys and values, from the result's, all of `attention`'s and its own.

    Operands: the gradient, queries, keys, values, result and normalisers. What queries' heads have
    in common gets the sum of their gradients.
    """
    dims = _AttentionDims(d, d.operands[1], d.operands[2], d.operands[3], sums_heads=True)
    result = (dims.queries[0], dims.queries[1], dims.queries[2], dims.values[3])
    given = [result, dims.queries, dims.keys, dims.values, result, dims.queries[:3], *dims.masks]
    return dims.factors.rule(given, [dims.queries, dims.keys, dims.values], ((0,),))


class _AttentionDims:
    """The factors of attention's tensors.

    Args:
        d: The call.
        queries: Shape `(b, h, t, d)`.
        keys: Shape `(b, g, s, d)`; g divides h.
        values: Shape `(b, g, s, e)`.
        sums_heads: Whether some result is a sum over the heads that share keys.
    """

    def __init__(
        self, d: Described, queries: Shape, keys: Shape, values: Shape, *, sums_heads: bool
    ) -> None:
        self.factors = factors = Factors()
        (b, h, t, width), (_, g, s, _), (*_, e) = queries, keys, values
        batch, group = factors.parallel(b), factors.parallel(g)
        head = factors.reduced(h // g) if sums_heads else factors.parallel(h // g)
        rows, columns, k, v = map(factors.whole, (t, s, width, e))
        self.queries = (batch, group + head, rows, k)
        self.keys = (batch, group, columns, k)
        self.values = (batch, group, columns, v)
        place = d.place("attn_mask")
        shape = () if place is None else d.operands[place]
        every = (batch, group + head, rows, columns)[4 - len(shape) :]
        mask = tuple(() if n == 1 else dim for dim, n in zip(every, shape, strict=True))
        self.masks = () if place is None else (mask,)


def attention_flops(d: Described) -> float:
    """Scores and a sum of values; in the gradient each product has two, and one is made again."""
    is_gradient = d.call.has("grad_out")
    queries, keys, values = d.operands[1:4] if is_gradient else d.operands[:3]
    (b, h, t, width), (_, _, s, _), (*_, e) = queries, keys, values
    return (2.5 if is_gradient else 1.0) * 2 * b * h * t * s * (width + e)


def convolution(d: Described) -> Rule:
    """Of data and kernel; one that is transposed is another's gradient by its data."""
    if not d.call.argument("transposed"):
        return autoshard.rule_of("convolution", d.operands, d.results, **_layout(d))
    data, kernel = d.operands
    rule = autoshard.rule_of(
        "convolution", (kernel, data), d.results, computes="data", **_layout(d)
    )
    return Rule(rule.factors, rule.operands[::-1], rule.results, ((0,), (1,)))


def convolution_gradient(d: Described) -> Rule:
    """One of the gradients by data and by kernel, from the result's, data and kernel.

    That by one does not depend on its numbers, but has its shape.
    """
    gradient, data, kernel = d.operands
    is_data = d.call.argument("output_mask")[0]
    if not d.call.argument("transposed"):
        given = (kernel, gradient) if is_data else (data, gradient)
        rule = autoshard.rule_of(
            "convolution", given, d.results, computes="data" if is_data else "kernel", **_layout(d)
        )
        other, of_gradient = rule.operands
    elif is_data:  # which is a convolution of the gradient
        rule = autoshard.rule_of("convolution", (gradient, kernel), d.results, **_layout(d))
        of_gradient, other = rule.operands
    else:
        given = (gradient, data)
        rule = autoshard.rule_of("convolution", given, d.results, computes="kernel", **_layout(d))
        of_gradient, other = rule.operands
    (made,) = rule.results
    operands = (of_gradient, made, other) if is_data else (of_gradient, other, made)
    return Rule(rule.factors, operands, rule.results, ((0,), (2,) if is_data else (1,)))


def convolution_flops(d: Described) -> float:
    """Each element of the larger of data and result sums over a kernel's channels and window."""
    if d.call.has("grad_output"):
        result, data, kernel = d.operands
    else:
        (data, kernel), (result,) = d.operands, d.results
    if d.call.argument("transposed"):
        result = data
    return autoshard.flops_of("convolution", (data, kernel), (result,), **_layout(d))


def _layout(d: Described) -> dict[str, object]:
    order = tuple(range(len(d.operands[0])))
    groups = d.call.argument("groups")
    return {"data": order, "kernel": order, "result": order, "groups": groups}
