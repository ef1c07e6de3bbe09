"""Rules of layers that frameworks have as one operator: norms, losses, attention, experts.

Where a program consists of their parts instead (reductions, products, exponentials), the rules of
the parts allow more: a softmax written in parts may split its dim, at the price of reducing a
maximum and a sum.
"""

from __future__ import annotations

from autoshard.graph.rule import Rule
from autoshard.rules.factors import Factors, Shapes
from autoshard.rules.notation import labelled, letters_of


def norm(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """A layer norm or RMS norm: an array, a scale, and perhaps a shift, over the last dims.

    The dims of the scale are normalised and stay whole; the dims before them are parallel. The
    result is a product with the scale plus the shift, so it is jointly linear in these.
    """
    array, *weights = operand_shapes
    kept = len(array) - len(weights[0])
    every = letters_of(array)
    normalised = every[kept:]
    words = [every, *[normalised] * len(weights)]
    formula = ",".join(words) + f"->{every}"
    linear = (tuple(range(1, len(operand_shapes))),)
    return labelled(formula, operand_shapes, result_shapes, whole=normalised, linear=linear)


def norm_gradient(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """Gradients of `norm`'s operands, given the gradient of its result, the array and the scale.

    All dims before those of scale and shift share them, so their gradients are sums over these.
    """
    array, scale = operand_shapes[1], operand_shapes[2]
    every = letters_of(array)
    normalised = every[len(array) - len(scale) :]
    results = [every, *[normalised] * (len(result_shapes) - 1)]
    formula = f"{every},{every},{normalised}->" + ",".join(results)
    return labelled(formula, operand_shapes, result_shapes, whole=normalised, linear=((0,),))


def batch_norm(operand_shapes: Shapes, result_shapes: Shapes, *, dim: int = 1) -> Rule:
    """A batch norm in training: array, scale and shift; only the channels (`dim`) are parallel.

    All results but the first are statistics of the channels.
    """
    every = letters_of(operand_shapes[0])
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
    """The loss of logits `(..., v)` at labels `(...)`; the classes stay whole."""
    word = letters_of(operand_shapes[1])
    return labelled(f"{word}v,{word}->{word}", operand_shapes, result_shapes, whole="v")


def cross_entropy_gradient(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """The gradient of the logits, given that of the loss `(...)`, the logits and the labels."""
    word = letters_of(operand_shapes[2])
    formula = f"{word},{word}v,{word}->{word}v"
    return labelled(formula, operand_shapes, result_shapes, whole="v", linear=((0,),))


def attention(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """Scaled dot-product attention of queries `(b, h, t, d)`.

    Keys are `(b, g, s, d)`, values `(b, g, s, e)`, the result is `(b, h, t, e)`. Batch, heads,
    queries and the width of the values are parallel. If there are fewer heads of keys than of
    queries (grouped-query attention), the dim of the queries' heads has two factors: the group, and
    the head within it. The local program has to shift a causal mask to the queries of its shard.
    """
    (b, h, t, d), (_, g, s, _), (*_, e) = operand_shapes
    factors = Factors()
    batch, group, head = factors.parallel(b), factors.parallel(g), factors.parallel(h // g)
    queries, keys, width = factors.parallel(t), factors.whole(s), factors.whole(d)
    value_width = factors.parallel(e)
    return factors.rule(
        [
            (batch, group + head, queries, width),
            (batch, group, keys, width),
            (batch, group, keys, value_width),
        ],
        [(batch, group + head, queries, value_width)],
        ((2,),),
    )


def moe_dispatch(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """Tokens sent to their experts: `(g, t, d), (g, t, k), (g, t, k) -> (e, g, c, d)`.

    Each group g routes on its own (GShard, 3.2). A token goes to k experts (operand 1), and within
    each to one of the c slots of its capacity (operand 2; a slot out of range drops the token).
    Each element of the result is a sum over tokens and choices, of which at most one is not zero,
    so t and k may be split.
    """
    return labelled("gtd,gtk,gtk->egcd", operand_shapes, result_shapes, linear=((0,),))


def moe_combine(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """Experts' results weighted and sent back: `(e, g, c, d)`, `(g, t, k)` thrice `-> (g, t, d)`.

    Operands 1 and 2 are expert and slot as in `moe_dispatch`, operand 3 the weights. Sums over e, c
    and k.
    """
    formula = "egcd,gtk,gtk,gtk->gtd"
    return labelled(formula, operand_shapes, result_shapes, linear=((0,), (3,)))
