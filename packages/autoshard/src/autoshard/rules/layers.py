"""Layers that frameworks have as one operator: softmax, norms, losses, attention, experts.

Where a program has their pieces instead (reductions, products, exponentials) the pieces' rules say
more: a softmax of pieces may split its dim, at the price of reducing a maximum and a sum.
"""

from __future__ import annotations

from autoshard.graph.rule import Rule
from autoshard.rules.factors import Factors, Shapes
from autoshard.rules.notation import labelled

_LETTERS = "abcefghijklmnopqrstuwxyz"


def norm(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """A layer norm or RMS norm: array, scale and perhaps shift of its last dims.

    The dims that the scale has are normalised and stay whole, those before are parallel. The
    result is a sum of products with scale and shift.
    """
    array, *weights = operand_shapes
    kept = len(array) - len(weights[0])
    every = _LETTERS[: len(array)]
    normalised = every[kept:]
    words = [every, *[normalised] * len(weights)]
    formula = ",".join(words) + f"->{every}"
    linear = (tuple(range(1, len(operand_shapes))),)
    return labelled(formula, operand_shapes, result_shapes, whole=normalised, linear=linear)


def norm_gradient(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """Gradients of `norm` by array, scale and perhaps shift, from the result's, array and scale.

    Scale and shift are shared by the dims before, so their gradients are sums over these.
    """
    array, scale = operand_shapes[1], operand_shapes[2]
    every = _LETTERS[: len(array)]
    normalised = every[len(array) - len(scale) :]
    results = [every, *[normalised] * (len(result_shapes) - 1)]
    formula = f"{every},{every},{normalised}->" + ",".join(results)
    return labelled(formula, operand_shapes, result_shapes, whole=normalised, linear=((0,),))


def batch_norm(operand_shapes: Shapes, result_shapes: Shapes, *, dim: int = 1) -> Rule:
    """A batch norm in training: array, scale and shift; only the channels, `dim`, are parallel.

    Further results are the channels' statistics.
    """
    every = _LETTERS[: len(operand_shapes[0])]
    channel = every[dim]
    words = [every, *[channel] * (len(operand_shapes) - 1)]
    results = [every, *[channel] * (len(result_shapes) - 1)]
    return labelled(
        ",".join(words) + "->" + ",".join(results),
        operand_shapes,
        result_shapes,
        whole=every.replace(channel, ""),
    )


def cross_entropy(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """The loss of logits `(..., v)` at labels `(...)`: all classes of an example together."""
    word = _LETTERS[: len(operand_shapes[1])]
    return labelled(f"{word}v,{word}->{word}", operand_shapes, result_shapes, whole="v")


def cross_entropy_gradient(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """The logits' gradient from that of the loss `(...)`, the logits and the labels."""
    word = _LETTERS[: len(operand_shapes[2])]
    formula = f"{word},{word}v,{word}->{word}v"
    return labelled(formula, operand_shapes, result_shapes, whole="v", linear=((0,),))


def attention(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """Scaled dot-product attention of queries `(b, h, t, d)`.

    Keys are `(b, g, s, d)`, values `(b, g, s, e)`, the result is `(b, h, t, e)`.
    Batch, heads and queries are parallel, and so is a value's width. With fewer heads of keys than
    of queries (grouped-query attention) a queries' head is a group and a head within it.
    A causal mask is the local program's to shift to its queries.
    """
    (b, h, t, d), (_, g, s, _), (*_, e) = operand_shapes
    factors = Factors()
    batch, group, head = factors.parallel(b), factors.parallel(g), factors.parallel(h // g)
    queries, keys, width = factors.parallel(t), factors.whole(s), factors.whole(d)
    made = factors.parallel(e)
    return factors.rule(
        [
            (batch, group + head, queries, width),
            (batch, group, keys, width),
            (batch, group, keys, made),
        ],
        [(batch, group + head, queries, made)],
        ((2,),),
    )


def moe_dispatch(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """Tokens sent to their experts: `(g, t, d), (g, t, k), (g, t, k) -> (e, g, c, d)`.

    Groups g route alone (GShard, 3.2); each token goes to k experts, operand 1, and there into a
    place of the expert's capacity c, operand 2 (one out of range drops it). Every result element
    is a sum over tokens and choices of which at most one is not zero, so t and k may be split.
    """
    return labelled("gtd,gtk,gtk->egcd", operand_shapes, result_shapes, linear=((0,),))


def moe_combine(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """Experts' results weighed and sent back: `(e, g, c, d)` and `(g, t, k)` thrice `-> (g, t, d)`.

    Operands 1 and 2 are expert and place as in `moe_dispatch`, 3 the weights. Sums over e, c and k.
    """
    formula = "egcd,gtk,gtk,gtk->gtd"
    return labelled(formula, operand_shapes, result_shapes, linear=((0,), (3,)))
