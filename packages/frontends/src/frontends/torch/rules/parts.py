"""Arguments that hold shapes of whole tensors, as they are for a part.

A part is a device's shard, or one microbatch; what differs is the same for both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from frontends.base.present import present
from frontends.torch.base.described import Described

Shape = tuple[int, ...]


def contiguous_strides(shape: Shape) -> list[int]:
    """The strides of a new tensor."""
    return [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]


def shape_as(name: str) -> Callable[[Described], dict[str, Any]]:
    """An argument of that name is the shape of the result."""
    return lambda d: {name: list(d.results[0])}


def strided(d: Described) -> dict[str, Any]:
    """Shape and strides of the result."""
    return {"size": list(d.results[0]), "stride": contiguous_strides(d.results[0])}


def rows(d: Described) -> dict[str, Any]:
    """How many rows a table's gradient has."""
    return {"num_weights": d.results[0][0]}


def convolution(d: Described) -> dict[str, Any]:
    """A device has as many groups as its channels fill."""
    data, kernel = _operand(d, "input"), _operand(d, "weight")
    if not d.call.argument("transposed"):
        return {"groups": data[1] // kernel[1]}
    made = _operand(d, "grad_output") if d.call.has("grad_output") else d.results[0]
    return {"groups": made[1] // kernel[1]}


def convolution_gradient(d: Described) -> dict[str, Any]:
    """The same, and as many sums over all but the channels as there are channels."""
    changed = convolution(d)
    if d.call.argument("bias_sizes"):
        changed["bias_sizes"] = [_operand(d, "grad_output")[1]]
    return changed


def group_norm(d: Described) -> dict[str, Any]:
    """Sizes of the array; groups are as large as they were."""
    examples, channels, *space = _operand(d, "input")
    return {
        "N": examples,
        "C": channels,
        "HxW": math.prod(space),
        "group": d.call.argument("group") * channels // d.call.argument("C"),
    }


def _operand(d: Described, name: str) -> Shape:
    place = present(d.place(name), "an argument that has a shape is an operand")
    return d.operands[place]
