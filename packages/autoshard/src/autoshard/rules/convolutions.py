"""Rules of convolutions and of their two gradients, which have the same factors.

Let n be the batch, g the feature groups, c and o the input and output channels of a group, and p
and q positions in space:

    y[n, (g, o), q] = sum over c, p of x[n, (g, c), p'(q, p)] * w[(g, o), c, p]

So n, g and o are parallel in the forward pass and c is summed over; the gradient of x sums over o,
that of w over n. The space dims stay whole, since a window of one tensor moves along those of the
other. The groups are the major factor of a channel dim (g, o), so a depthwise convolution (one
channel in a group) is parallel in them. The local convolution of a device has as many groups as its
shards imply: the channels of x over those of w.
"""

from __future__ import annotations

from typing import Literal

from autoshard.errors import RuleError
from autoshard.graph.rule import Dims, Rule
from autoshard.rules.factors import Dim, Factors, Shape, Shapes

Layout = tuple[int, ...]
"""The dim of the batch (for a kernel: of the output channels), that of the channels, and those of
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
    """A convolution over any number of space dims, or its gradient by one of its operands.

    Args:
        operand_shapes: Two of data, kernel and result, in this order: all but the computed one.
        result_shapes: The shape of the computed one.
        data: The data's dims (batch, channels, space...).
        kernel: The kernel's dims (output channels, input channels of a group, space...).
        result: The result's dims (batch, channels, space...).
        groups: Into how many groups all channels are divided (XLA's feature_group_count).
        batch_groups: Into how many groups the data's batch and the output channels are divided
            (XLA's batch_group_count, by which XLA writes the kernel gradient of a grouped
            convolution).
        computes: `result` in the forward pass, else the operand whose gradient is computed.

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
    computed = tensors.pop(names.index(computes))
    return factors.rule(tensors, [computed], ((0,), (1,)))


def _factors(
    factors: Factors, sizes: tuple[int, int, int], outputs: int, computes: Computes
) -> tuple[Dim, Dim, Dim, Dim]:
    """Factors of batch, groups, channels and outputs; the computed tensor sums over what it lacks.

    Args:
        factors: The rule's factors, to which these are added.
        sizes: Of batch, groups and the input channels of a group.
        outputs: The number of output channels of a group.
        computes: As in `convolution`.
    """
    n, groups, channels = sizes
    return (
        factors.reduced(n) if computes == "kernel" else factors.parallel(n),
        factors.parallel(groups),
        factors.reduced(channels) if computes == "result" else factors.parallel(channels),
        factors.reduced(outputs) if computes == "data" else factors.parallel(outputs),
    )
