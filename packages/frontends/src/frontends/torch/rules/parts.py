"""Adapts arguments that hold shapes of whole tensors to a part of the tensors.

A part is a device's shard or one microbatch; the same arguments change for both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from frontends.base.present import present
from frontends.torch.base.described import Described

Shape = tuple[int, ...]


def contiguous_strides(shape: Shape) -> list[int]:
    """Return the strides of a contiguous tensor."""
    return [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]


def shape_as(name: str) -> Callable[[Described], dict[str, Any]]:
    """Return a function that sets the argument of this name to the shape of the result."""
    return lambda d: {name: list(d.results[0])}


def strided(d: Described) -> dict[str, Any]:
    """Set the arguments that hold shape and strides of the result."""
    return {"size": list(d.results[0]), "stride": contiguous_strides(d.results[0])}


def view(d: Described) -> dict[str, Any]:
    """Set the argument that holds the shape of what is written."""
    return {"size": list(d.operands[1])}


def rows(d: Described) -> dict[str, Any]:
    """Set the argument that holds the number of rows of an embedding table's gradient."""
    return {"num_weights": d.results[0][0]}


def convolution(d: Described) -> dict[str, Any]:
    """Set the number of groups to that of the channels that the part has."""
    data, kernel = _operand(d, "input"), _operand(d, "weight")
    if not d.call.argument("transposed"):
        return {"groups": data[1] // kernel[1]}
    result = _operand(d, "grad_output") if d.call.has("grad_output") else d.results[0]
    return {"groups": result[1] // kernel[1]}


def convolution_gradient(d: Described) -> dict[str, Any]:
    """Set the number of groups, and the shape of the bias's gradient, one sum for each channel."""
    changed = convolution(d)
    if d.call.argument("bias_sizes"):
        changed["bias_sizes"] = [_operand(d, "grad_output")[1]]
    return changed


def group_norm(d: Described) -> dict[str, Any]:
    """Set the sizes of the array; a group has as many channels as before."""
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
