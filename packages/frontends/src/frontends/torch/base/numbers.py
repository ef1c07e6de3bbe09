"""What Python computes from numbers that a step takes out of tensors, as calls.

Such a number, as the count of steps that a bias correction is made of, is a tensor of shape ().
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from frontends.errors import UnsupportedStepError
from frontends.torch.base.calls import Call, Operand

aten = torch.ops.aten

_BINARY: dict[Any, tuple[Any, Any]] = {
    operator.add: (aten.add.Tensor, aten.add.Scalar),
    operator.mul: (aten.mul.Tensor, aten.mul.Scalar),
    operator.sub: (aten.sub.Tensor, aten.sub.Scalar),
    operator.truediv: (aten.div.Tensor, aten.div.Scalar),
    operator.pow: (aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar),
}
"""Of two numbers of the step, and of one and a constant."""

_UNARY: dict[str, tuple[Call, ...]] = {
    "neg": (Call(aten.neg.default, (Operand(0),), {}),),
    "abs": (Call(aten.abs.default, (Operand(0),), {}),),
    **dict.fromkeys(
        ("sqrt", "sym_sqrt", "_sym_sqrt"), (Call(aten.sqrt.default, (Operand(0),), {}),)
    ),
    "sym_float": (),  # the tensors' types say it
}


def calls_on_numbers(
    function: Any, arguments: Sequence[Any], is_read: Sequence[bool]
) -> list[Call]:
    """Calls that do what a function of Python does, each but the first on what the last made.

    Args:
        function: Of the module `operator`, or torch's own for numbers.
        arguments: What it is called with; those that are read are not looked at.
        is_read: Which arguments are numbers of the step.

    Raises:
        UnsupportedStepError: No operator does the same.
    """
    name = getattr(function, "__name__", str(function))
    if len(arguments) == 1 and name in _UNARY:
        return list(_UNARY[name])
    if len(arguments) == 2 and function in _BINARY:
        both, first = _BINARY[function]
        left, right = arguments
        if all(is_read):
            return [Call(both, (Operand(0), Operand(1)), {})]
        if is_read[0]:
            return [Call(first, (Operand(0), right), {})]
        if function is operator.sub:
            return [Call(aten.rsub.Scalar, (Operand(0), left), {})]
        if function is operator.pow:
            return [Call(aten.pow.Scalar, (left, Operand(0)), {})]
        if function is operator.truediv:
            inverse = Call(aten.reciprocal.default, (Operand(0),), {})
            return [inverse, Call(aten.mul.Scalar, (Operand(0), left), {})]
        return [Call(first, (Operand(0), left), {})]
    raise UnsupportedStepError(
        "a number that a step takes out of a tensor can be added, multiplied, divided and raised "
        f"to powers; the step also computes {name} of one: use tensors there"
    )
