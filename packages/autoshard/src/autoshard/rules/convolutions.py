"""Convolutions and their two gradients, which are one set of factors read three ways.

With batch n, feature groups g, input channels c and output channels o of a group, and space:

    y[n, (g, o), q] = sum over c, p of x[n, (g, c), p'(q, p)] * w[(g, o), c, p]

so n, g and o are parallel and c is summed in the forward pass; the gradient of x sums over o, that
of w over n. Space is a window over each other's dims, and stays whole. A channel dim is (g, o):
groups are its major factor, so a depthwise convolution (one channel a group) is parallel in them.
A device's part has as many groups as its shards say: channels of x over those of w.
"""

from __future__ import annotations

from typing import Literal

from autoshard.errors import RuleError
from autoshard.graph.rule import Dims, Rule
from autoshard.rules.factors import Dim, Factors, Shape, Shapes

Layout = tuple[int, ...]
"""Which dim is the first special one (batch; output channels), the second (channels), and then
space: (0, 3, 1, 2) is NHWC."""

Computes = Literal["result", "data", "kernel"]


def convolution(
    operand_shapes: Shapes,
    result_shapes: Shapes,
    *,
    data: Layout,
    kernel: Layout,
    result: Layout,
    groups: int = 1,
    batch_groups: int = 1,
    computes: Computes = "result",
) -> Rule:
    """A convolution of any number of space dims, or the gradient by one of its operands.

    Args:
        operand_shapes: Two of data, kernel and result, in this order, without what is computed.
        result_shapes: What is computed.
        data: Where the data has (batch, channels, space...).
        kernel: Where the kernel has (output channels, input channels of a group, space...).
        result: Where the result has (batch, channels, space...).
        groups: Into how many groups all channels are divided (XLA's feature_group_count).
        batch_groups: Into how many groups the data's batch and the output channels are divided
            (XLA's batch_group_count: how it writes the kernel's gradient of a grouped one).
        computes: `result` forward, else the operand that the gradient is of.

    Examples:
        >>> nchw = (0, 1, 2, 3)
        >>> depthwise = convolution(((8, 4, 9, 9), (4, 1, 3, 3)), ((8, 4, 7, 7),),
        ...                         data=nchw, kernel=nchw, result=nchw, groups=4)
        >>> [factor.size for factor in depthwise.factors if factor.kind == "parallel"]
        [8, 4]
    """
    names: tuple[Computes, ...] = ("data", "kernel", "result")
    shapes = list(operand_shapes)
    shapes.insert(names.index(computes), result_shapes[0])
    x, w, y = shapes
    if groups > 1 and batch_groups > 1:
        raise RuleError(
            "a convolution has groups of channels or of its batch, not both; "
            f"got groups={groups} and batch_groups={batch_groups}"
        )
    for what, size, parts in (
        ("input channels", x[data[1]], groups),
        ("output channels", w[kernel[0]], groups * batch_groups),
        ("batch", x[data[0]], batch_groups),
    ):
        if size % parts:
            raise RuleError(f"groups divide the {what}; got {size} and {parts} groups")
    factors = Factors()
    n, group, channels, outputs = _factors(
        factors,
        (x[data[0]] // batch_groups, groups * batch_groups, w[kernel[1]]),
        w[kernel[0]] // (groups * batch_groups),
        computes,
    )
    in_batch, in_channels = (group, ()) if batch_groups > 1 else ((), group)

    def dims(shape: Shape, layout: Layout, first: Dim, second: Dim) -> Dims:
        special = {layout[0]: first, layout[1]: second}
        return tuple(special[d] if d in special else factors.whole(m) for d, m in enumerate(shape))

    tensors = [
        dims(x, data, in_batch + n, in_channels + channels),
        dims(w, kernel, group + outputs, channels),
        dims(y, result, n, group + outputs),
    ]
    made = tensors.pop(names.index(computes))
    return factors.rule(tensors, [made], ((0,), (1,)))


def _factors(
    factors: Factors, sizes: tuple[int, int, int], outputs: int, computes: Computes
) -> tuple[Dim, Dim, Dim, Dim]:
    """Batch, groups, channels and outputs; the one that the computed tensor lacks is summed."""
    n, groups, channels = sizes
    return (
        factors.reduced(n) if computes == "kernel" else factors.parallel(n),
        factors.parallel(groups),
        factors.reduced(channels) if computes == "result" else factors.parallel(channels),
        factors.reduced(outputs) if computes == "data" else factors.parallel(outputs),
    )
