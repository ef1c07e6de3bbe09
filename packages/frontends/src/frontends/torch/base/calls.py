"""One aten call of a step: the operator, and its arguments with tensors replaced by positions."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from frontends.base.cache_keys import cache_key

Tensor = torch.Tensor


def _in_rows(tensor: Tensor) -> Tensor:
    """Return the tensor with elements of the last dim adjacent in memory, copied if need be."""
    return tensor if not tensor.dim() or tensor.stride(-1) == 1 else tensor.contiguous()


_LAID: dict[str, Callable[[Tensor], Tensor]] = {
    **dict.fromkeys(("native_group_norm", "native_group_norm_backward"), Tensor.contiguous),
    "view_as_complex": Tensor.contiguous,
    "_scaled_dot_product_flash_attention_for_cpu": _in_rows,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _in_rows,
}
"""The memory layout that some kernels assume of their operands. On another layout they fail, or
read memory that is not the operand's. PyTorch itself checks the layout before it calls such a
kernel; here it did so while the step was captured, on tensors with other strides than these."""


_OURS = ("aten", "meshwright")


def name_of(target: torch._ops.OpOverload) -> str:
    """Return an operator's name: without namespace for aten's, with it for a library's.

    A library may have an `add`, too.
    """
    namespace, _, name = target._schema.name.rpartition("::")
    return name if namespace in _OURS else target._schema.name


@dataclass(frozen=True, slots=True)
class Operand:
    """Stands for a tensor among the arguments of a call."""

    place: int
    """The tensor's index in the operator's inputs."""


@dataclass(frozen=True, slots=True)
class Call:
    """An operator of aten and its arguments; plain data, as it does not hold the tensors."""

    target: torch._ops.OpOverload
    arguments: tuple[Any, ...]
    """Tensors, including those inside lists, are `Operand`s; all else is as torch takes it."""

    keywords: dict[str, Any]

    @property
    def name(self) -> str:
        """The operator's name without its overload: `add` for `aten.add.Tensor`."""
        return name_of(self.target)

    @property
    def key(self) -> Hashable:
        """Equal for calls that are alike."""
        return self.target, cache_key(self.arguments), cache_key(self.keywords)

    def __call__(self, operands: Sequence[Tensor]) -> list[Tensor]:
        """Run the call; return its tensors in the order of the operator's outputs, without None."""
        return self.bound()(operands)

    def bound(self) -> Callable[[Sequence[Tensor]], list[Tensor]]:
        """Return a function that runs the call, with all that operands do not affect prepared."""
        target, numbers = self.target, numbers_of(self.target)
        arguments = [_known(argument) for argument in self.arguments]
        keywords = {name: _known(value) for name, value in self.keywords.items()}
        by_place = [
            (at, _getter(argument, at in numbers))
            for at, argument in enumerate(self.arguments)
            if reads(argument)
        ]
        by_name = [
            (name, _getter(value, name in numbers))
            for name, value in self.keywords.items()
            if reads(value)
        ]

        lay = _LAID.get(self.name)

        def run(operands: Sequence[Tensor]) -> list[Tensor]:
            if lay is not None:
                operands = [lay(operand) for operand in operands]
            positional = arguments.copy()
            for at, get in by_place:
                positional[at] = get(operands)
            if not by_name:
                return tensors_of(target(*positional, **keywords))
            named = {name: get(operands) for name, get in by_name}
            return tensors_of(target(*positional, **{**keywords, **named}))

        return run

    def argument(self, name: str) -> Any:
        """Return the argument of this name in the operator's schema, or its default."""
        for place, declared in enumerate(self.target._schema.arguments):
            if declared.name == name:
                if name in self.keywords:
                    return self.keywords[name]
                if place < len(self.arguments):
                    return self.arguments[place]
                return declared.default_value
        raise KeyError(name)

    def has(self, name: str) -> bool:
        """Whether the operator's schema has an argument of that name."""
        return any(declared.name == name for declared in self.target._schema.arguments)

    def replace(self, **changed: Any) -> Call:
        """The same call with other arguments, named as in the operator's schema."""
        places = {a.name: i for i, a in enumerate(self.target._schema.arguments)}
        arguments, keywords = list(self.arguments), dict(self.keywords)
        for name, value in changed.items():
            if name not in keywords and places[name] < len(arguments):
                arguments[places[name]] = value
            else:
                keywords[name] = value
        return Call(self.target, tuple(arguments), keywords)


@cache
def numbers_of(target: torch._ops.OpOverload) -> frozenset[int | str]:
    """Return the positions and names of the arguments that are Python numbers.

    Where a call has an `Operand` for such an argument, the operand is a tensor of shape (), such as
    a learning rate.
    """
    numbers = torch._C.NumberType | torch._C.FloatType | torch._C.IntType
    number_arguments = [
        (place, declared.name)
        for place, declared in enumerate(target._schema.arguments)
        if isinstance(_plain(declared.type), numbers)
    ]
    return frozenset(key for pair in number_arguments for key in pair)


def _plain(declared: Any) -> Any:
    """Return the type without `Optional`."""
    return declared.getElementType() if isinstance(declared, torch._C.OptionalType) else declared


def fill(argument: Any, operands: Sequence[Any]) -> Any:
    """Return an argument with the tensors that its `Operand`s stand for."""
    if isinstance(argument, Operand):
        return operands[argument.place]
    if isinstance(argument, list | tuple):
        return [fill(item, operands) for item in argument]
    return argument


def reads(argument: Any) -> bool:
    """Return whether an argument is an `Operand` or contains one."""
    if isinstance(argument, list | tuple):
        return any(map(reads, argument))
    return isinstance(argument, Operand)


def _known(argument: Any) -> Any:
    """Return an argument as torch takes it; None for one that contains operands."""
    return None if reads(argument) else fill(argument, ())


def _getter(argument: Any, is_number: bool) -> Callable[[Sequence[Tensor]], Any]:
    """Return a function from the operands to the argument that contains them."""
    if not isinstance(argument, Operand):
        return lambda operands: fill(argument, operands)
    if is_number:
        return lambda operands: operands[argument.place].item()
    return operator.itemgetter(argument.place)


def tensors_of(result: Any) -> list[Tensor]:
    """The tensors that a call returned."""
    if isinstance(result, torch.Tensor):
        return [result]
    return [item for item in result if isinstance(item, torch.Tensor)]
