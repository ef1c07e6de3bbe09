"""Calls on part of their operands: arguments that hold shapes become those of the part.

A part is a device's shard, or one microbatch; what differs is the same for both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from frontends.errors import InternalError
from frontends.torch.base.calls import Call, Operand

Shape = tuple[int, ...]
Shapes = Sequence[Shape]


def call_of_part(call: Call, operands: Shapes, results: Shapes) -> Call:
    """The call that makes a part of its results out of parts of its operands.

    Args:
        call: On whole tensors.
        operands: Shapes of the parts of its operands.
        results: Shapes of the parts of its results.
    """
    change = _CHANGES.get(call.name)
    return call if change is None else call.replace(**change(call, operands, results))


def contiguous_strides(shape: Shape) -> list[int]:
    """The strides of a new tensor."""
    return [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]


def _as(name: str) -> Callable[[Call, Shapes, Shapes], dict[str, Any]]:
    """An argument of that name is the shape of the result."""
    return lambda call, operands, results: {name: list(results[0])}


def _strided(call: Call, operands: Shapes, results: Shapes) -> dict[str, Any]:
    return {"size": list(results[0]), "stride": contiguous_strides(results[0])}


def _rows(call: Call, operands: Shapes, results: Shapes) -> dict[str, Any]:
    return {"num_weights": results[0][0]}


def _convolution(call: Call, operands: Shapes, results: Shapes) -> dict[str, Any]:
    """A device has as many groups as its channels fill."""
    data, kernel = (operands[_place(call, name)] for name in ("input", "weight"))
    if not call.argument("transposed"):
        return {"groups": data[1] // kernel[1]}
    made = operands[_place(call, "grad_output")] if call.has("grad_output") else results[0]
    return {"groups": made[1] // kernel[1]}


def _convolution_backward(call: Call, operands: Shapes, results: Shapes) -> dict[str, Any]:
    changed = _convolution(call, operands, results)
    if call.argument("bias_sizes"):
        changed["bias_sizes"] = [operands[_place(call, "grad_output")][1]]
    return changed


def _group_norm(call: Call, operands: Shapes, results: Shapes) -> dict[str, Any]:
    examples, channels, *space = operands[_place(call, "input")]
    return {
        "N": examples,
        "C": channels,
        "HxW": math.prod(space),
        "group": call.argument("group") * channels // call.argument("C"),
    }


def _resized_backward(call: Call, operands: Shapes, results: Shapes) -> dict[str, Any]:
    return {"input_size": list(results[0])}


def _place(call: Call, name: str) -> int:
    operand = call.argument(name)
    if not isinstance(operand, Operand):
        raise InternalError(f"an argument that has a shape is an operand; got {name}={operand!r}")
    return operand.place


# fmt: off
_SIZED = (
    "view", "view_copy", "_unsafe_view", "expand", "expand_copy", "new_zeros", "new_ones",
    "new_empty", "new_full", "zeros", "ones", "full", "empty",
)
# fmt: on
_CHANGES: dict[str, Callable[[Call, Shapes, Shapes], dict[str, Any]]] = {
    **{name: _as("size") for name in _SIZED},
    "reshape": _as("shape"),
    **dict.fromkeys(("new_empty_strided", "empty_strided"), _strided),
    **dict.fromkeys(
        ("select_backward", "slice_backward", "diagonal_backward", "unfold_backward"),
        _as("input_sizes"),
    ),
    "index_select_backward": _as("self_sizes"),
    **dict.fromkeys(
        (f"upsample_{how}_backward" for how in ("nearest2d", "bilinear2d", "bicubic2d")),
        _resized_backward,
    ),
    "embedding_dense_backward": _rows,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    **dict.fromkeys(("native_group_norm", "native_group_norm_backward"), _group_norm),
}
"""Arguments that hold shapes of whole tensors, by operator."""
