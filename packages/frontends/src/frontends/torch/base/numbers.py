"""Python arithmetic on numbers that a step reads from tensors, rewritten as aten calls.

In the rewritten program such a number, like the count of steps in a bias correction, is a tensor of
shape ().
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
"""The aten operator for two numbers of the step, and for one and a constant."""

_UNARY: dict[str, tuple[Call, ...]] = {
    "neg": (Call(aten.neg.default, (Operand(0),), {}),),
    "abs": (Call(aten.abs.default, (Operand(0),), {}),),
    **dict.fromkeys(
        ("sqrt", "sym_sqrt", "_sym_sqrt"), (Call(aten.sqrt.default, (Operand(0),), {}),)
    ),
    "sym_float": (),  # a tensor has its type already
}


def calls_on_numbers(
    function: Any, arguments: Sequence[Any], is_read: Sequence[bool]
) -> list[Call]:
    """Return calls that compute a Python function; each but the first reads the previous result.

    Args:
        function: From the module `operator`, or torch's function for symbolic numbers.
        arguments: Its arguments; of those that are numbers of the step the value is ignored.
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
