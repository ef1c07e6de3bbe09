"""Rules of layers that are one aten operator, and of the gradients of these."""

from __future__ import annotations

import autoshard
from autoshard import Rule, labelled
from autoshard.rules import Factors

from frontends.torch.base.described import Described, letters

Shape = tuple[int, ...]


def layer_norm(d: Described) -> Rule:
    """Return the rule of layer norm; normalised dims stay whole.

    Results: the normalised array, means, and reciprocal standard deviations.
    """
    rank, n = len(d.operands[0]), len(d.call.argument("normalized_shape"))
    every = letters(rank)
    normalised = every[rank - n :]
    words = [every, *[normalised] * (len(d.operands) - 1)]
    formula = ",".join(words) + f"->{every},{every},{every}"
    return labelled(formula, d.operands, d.results, whole=normalised)


def layer_norm_gradient(d: Described) -> Rule:
    """Return the rule of layer norm's gradients with respect to array, scale and shift.

    Those of scale and shift are sums over examples.
    """
    rank, n = len(d.operands[1]), len(d.call.argument("normalized_shape"))
    every = letters(rank)
    normalised = every[rank - n :]
    words = [every] * 4 + [normalised] * (len(d.operands) - 4)
    results = [every if len(shape) == rank else normalised for shape in d.results]
    formula = ",".join(words) + "->" + ",".join(results)
    return labelled(formula, d.operands, d.results, whole=normalised, linear=((0,),))


def group_norm(d: Described) -> Rule:
    """Return the rule of group norm: like `layer_norm` over groups of channels.

    Examples are parallel; all other dims stay whole.
    """
    every = letters(len(d.operands[0]), "ng")
    array = "n" + every[1:]
    words = [array, *[every[1]] * (len(d.operands) - 1)]
    formula = ",".join(words) + f"->{array},ng,ng"
    return labelled(formula, d.operands, d.results, whole=every[1:] + "g")


def group_norm_gradient(d: Described) -> Rule:
    """Return the rule of group norm's gradients with respect to array, scale and shift."""
    every = letters(len(d.operands[0]), "ng")
    array = "n" + every[1:]
    words = [array, array, "ng", "ng", *[every[1]] * (len(d.operands) - 4)]
    results = [array if len(shape) > 1 else every[1] for shape in d.results]
    formula = ",".join(words) + "->" + ",".join(results)
    return labelled(formula, d.operands, d.results, whole=every[1:] + "g", linear=((0,),))


def attention(d: Described) -> Rule:
    """Return the rule of attention: from queries, keys, values and mask to result and normalisers.

    Examples, heads and rows of queries are parallel; each row needs all keys. Examples and heads
    may share a mask, and a group of query heads may share the keys and values of one head.
    Microbatches do not know the number of a row, which a causal mask asks for.
    """
    dims = _AttentionDims(d, d.operands[0], d.operands[1], d.operands[2], is_gradient=False)
    result = (dims.queries[0], dims.queries[1], dims.queries[2], dims.values[3])
    operands = [dims.queries, dims.keys, dims.values, *dims.masks]
    return dims.factors.rule(operands, [result, dims.queries[:3]], rings=dims.rings)


def attention_gradient(d: Described) -> Rule:
    """Return the rule of attention's gradients with respect to queries, keys and values.

    Operands: the result's gradient, queries, keys, values, result, normalisers and mask. Keys and
    values that several query heads share get the sum of their gradients.
    """
    dims = _AttentionDims(d, d.operands[1], d.operands[2], d.operands[3], is_gradient=True)
    result = (dims.queries[0], dims.queries[1], dims.queries[2], dims.values[3])
    operands = [result, dims.queries, dims.keys, dims.values, result, dims.queries[:3], *dims.masks]
    made = [dims.queries, dims.keys, dims.values]
    return dims.factors.rule(operands, made, ((0,),), dims.rings)


class _AttentionDims:
    """The factors of the dims of attention's tensors.

    Args:
        d: The call.
        queries: Shape `(b, h, t, d)`.
        keys: Shape `(b, g, s, d)`; g divides h.
        values: Shape `(b, g, s, e)`.
        is_gradient: Whether some results are sums over rows, and over query heads that share keys.
    """

    def __init__(
        self, d: Described, queries: Shape, keys: Shape, values: Shape, *, is_gradient: bool
    ) -> None:
        self.factors = factors = Factors()
        (b, h, t, width), (_, g, s, _), (*_, e) = queries, keys, values
        is_causal, place = d.call.argument("is_causal"), d.place("attn_mask")
        halves = is_causal and t <= s and place is None
        batch, group = factors.parallel(b, halves=halves), factors.parallel(g, halves=halves)
        make = factors.reduced if is_gradient else factors.parallel
        head = make(h // g, halves=halves)
        can_split = d.masked or not is_causal
        rows = make(t, rises=is_causal and t <= s) if can_split else factors.whole(t)
        columns, k, v = map(factors.whole, (s, width, e))
        self.queries = (batch, group + head, rows, k)
        self.keys = (batch, group, columns, k)
        self.values = (batch, group, columns, v)
        self.rings = [(rows, columns)] * (can_split and t == s)
        shape = () if place is None else d.operands[place]
        # Where keys go round, a device has the mask of its rows for all of them.
        every = (batch, group + head, rows, factors.whole(s))[4 - len(shape) :]
        mask = tuple(() if n == 1 else dim for dim, n in zip(every, shape, strict=True))
        self.masks = () if place is None else (mask,)


def attention_flops(d: Described) -> float:
    """Return the FLOP: two matrix products forward, for the scores and for the sum of values.

    Backward has two for each of these, and computes the scores again: five, 2.5 times as many. With
    a causal mask, the kernel computes what is on the diagonal and below it.
    """
    is_gradient = d.call.has("grad_out")
    queries, keys, values = d.operands[1:4] if is_gradient else d.operands[:3]
    (b, h, t, width), (_, _, s, _), (*_, e) = queries, keys, values
    n = min(t, s)  # row i sees i + 1 keys, and every row below the square sees all
    pairs = n * (n + 1) / 2 + (t - n) * s if d.call.argument("is_causal") else t * s
    return (2.5 if is_gradient else 1.0) * 2 * b * h * pairs * (width + e)


def convolution(d: Described) -> Rule:
    """Return the rule of a convolution.

    A transposed convolution is the gradient of another one with respect to the data.
    """
    if not d.call.argument("transposed"):
        return autoshard.rule_of("convolution", d.operands, d.results, **_layout(d))
    data, kernel = d.operands
    rule = autoshard.rule_of(
        "convolution", (kernel, data), d.results, computes="data", **_layout(d)
    )
    return Rule(rule.factors, rule.operands[::-1], rule.results, ((0,), (1,)))


def convolution_gradient(d: Described) -> Rule:
    """Return the rule of a convolution's gradient with respect to either data or kernel.

    Operands: the result's gradient, data and kernel. The gradient with respect to one of these two
    does not depend on its values, but has its shape, and is sharded like it.
    """
    gradient, data, kernel = d.operands
    is_data = d.call.argument("output_mask")[0]
    if not d.call.argument("transposed"):
        read = (kernel, gradient) if is_data else (data, gradient)
        rule = autoshard.rule_of(
            "convolution", read, d.results, computes="data" if is_data else "kernel", **_layout(d)
        )
        other, of_gradient = rule.operands
    elif is_data:  # the gradient of a transposed convolution is a convolution
        rule = autoshard.rule_of("convolution", (gradient, kernel), d.results, **_layout(d))
        of_gradient, other = rule.operands
    else:
        read = (gradient, data)
        rule = autoshard.rule_of("convolution", read, d.results, computes="kernel", **_layout(d))
        of_gradient, other = rule.operands
    (result,) = rule.results
    operands = (of_gradient, result, other) if is_data else (of_gradient, other, result)
    return Rule(rule.factors, operands, rule.results, ((0,), (2,) if is_data else (1,)))


def convolution_flops(d: Described) -> float:
    """Return the FLOP: each element of the result sums over the kernel's channels and window.

    In a transposed convolution each element of the data takes the result's part.
    """
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
