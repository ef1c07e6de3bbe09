"""Calls that take a number which the program has as a tensor, such as a learning rate.

Run call by call, they read the number from the tensor. A compiler would fix it, so there they are
computed as tensors: `addcdiv(x, a, b, value=v)` is `x + v * (a / b)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from frontends.torch.base.calls import Call, Operand, Tensor, fill, numbers_of

aten = torch.ops.aten


def has_number_operands(call: Call) -> bool:
    """Return whether the call reads a number from a tensor."""
    numbers = numbers_of(call.target)
    arguments = (*enumerate(call.arguments), *call.keywords.items())
    return any(key in numbers and isinstance(value, Operand) for key, value in arguments)


def on_tensors(
    call: Call, dtypes: Sequence[torch.dtype]
) -> Callable[[Sequence[Tensor]], list[Tensor]] | None:
    """Return a function that computes the call with its numbers as tensors; None if none is known.

    Args:
        call: A call with number operands, which may overwrite its first argument.
        dtypes: The types of the operands. A function is known if all but the numbers are of one
            floating-point type: others are promoted, and integers are exact.
    """
    compute = _COMPUTED.get(call.name.removesuffix("_"))
    numbers = numbers_of(call.target)
    arguments = (*enumerate(call.arguments), *call.keywords.items())
    kinds = {
        dtypes[value.place]
        for key, value in arguments
        if isinstance(value, Operand) and key not in numbers
    }
    if compute is None or len(kinds) != 1 or not kinds.pop().is_floating_point:
        return None

    def run(operands: Sequence[Tensor]) -> list[Tensor]:
        changed, *others = (fill(argument, operands) for argument in call.arguments)
        named = {name: fill(value, operands) for name, value in call.keywords.items()}
        # in the type in which kernels compute, so that the result is rounded once
        wide = torch.promote_types(changed.dtype, torch.float32)
        tensors = [x.to(wide) if isinstance(x, Tensor) else x for x in (changed, *others)]
        named = {name: x.to(wide) if isinstance(x, Tensor) else x for name, x in named.items()}
        result = compute(*tensors, **named).to(changed.dtype)
        return [changed.copy_(result) if call.name.endswith("_") else result]

    return run


def _addcmul(x: Tensor, a: Tensor, b: Tensor, value: Tensor) -> Tensor:
    return x + value * a * b


def _addcdiv(x: Tensor, a: Tensor, b: Tensor, value: Tensor) -> Tensor:
    return x + value * (a / b)


def _add(x: Tensor, other: Tensor, alpha: Tensor) -> Tensor:
    return x + alpha * other


def _sub(x: Tensor, other: Tensor, alpha: Tensor) -> Tensor:
    return x - alpha * other


_COMPUTED: dict[str, Callable[..., Tensor]] = {
    "addcmul": _addcmul,
    "addcdiv": _addcdiv,
    "add": _add,
    "sub": _sub,
    "lerp": torch.lerp,
}
"""By operator, the same in terms of tensors; keywords have the names in the operator's schema."""
