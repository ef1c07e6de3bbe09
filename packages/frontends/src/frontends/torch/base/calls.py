"""One aten call of a step: the operator, and its arguments with tensors by place."""

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
    """With elements of the last dim side by side."""
    return tensor if not tensor.dim() or tensor.stride(-1) == 1 else tensor.contiguous()


_LAID: dict[str, Callable[[Tensor], Tensor]] = {
    **dict.fromkeys(("native_group_norm", "native_group_norm_backward"), Tensor.contiguous),
    "view_as_complex": Tensor.contiguous,
    "_scaled_dot_product_flash_attention_for_cpu": _in_rows,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _in_rows,
}
"""How operands have to lie where an operator's kernel supposes it, and fails or reads what is not
theirs. PyTorch looks at it before it calls such a kernel, on memory that is not a step's here."""


_OURS = ("aten", "meshwright")


def name_of(target: torch._ops.OpOverload) -> str:
    """An operator of aten without its namespace; of a library, which may have an `add`, with it."""
    namespace, _, name = target._schema.name.rpartition("::")
    return name if namespace in _OURS else target._schema.name


@dataclass(frozen=True, slots=True)
class Operand:
    """Stands for a tensor among the arguments of a call."""

    place: int
    """In the operator's inputs."""


@dataclass(frozen=True, slots=True)
class Call:
    """An operator of aten and all that it is called with; without its tensors it is plain data."""

    target: torch._ops.OpOverload
    arguments: tuple[Any, ...]
    """Tensors, also those in lists, are `Operand`s; all else is as torch takes it."""

    keywords: dict[str, Any]

    @property
    def name(self) -> str:
        """The operator without its overload: `add` for `aten.add.Tensor`."""
        return name_of(self.target)

    @property
    def key(self) -> Hashable:
        """Equal for calls that are alike."""
        return self.target, cache_key(self.arguments), cache_key(self.keywords)

    def __call__(self, operands: Sequence[Tensor]) -> list[Tensor]:
        """The call's tensors, in the order of the operator's outputs; what is None is left out."""
        return self.bound()(operands)

    def bound(self) -> Callable[[Sequence[Tensor]], list[Tensor]]:
        """The same call, with all looked up that does not depend on the operands' values."""
        target, numbers = self.target, _numbers_of(self.target)
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
            given = arguments.copy()
            for at, get in by_place:
                given[at] = get(operands)
            if not by_name:
                return tensors_of(target(*given, **keywords))
            named = {name: get(operands) for name, get in by_name}
            return tensors_of(target(*given, **{**keywords, **named}))

        return run

    def argument(self, name: str) -> Any:
        """An argument by its name in the operator's schema, or its default."""
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
def _numbers_of(target: torch._ops.OpOverload) -> frozenset[int | str]:
    """Places and names of the arguments that are Python's numbers.

    An operand there is a tensor of shape (), such as a learning rate.
    """
    numbers = torch._C.NumberType | torch._C.FloatType | torch._C.IntType
    found = [
        (place, declared.name)
        for place, declared in enumerate(target._schema.arguments)
        if isinstance(_plain(declared.type), numbers)
    ]
    return frozenset(key for pair in found for key in pair)


def _plain(declared: Any) -> Any:
    """A type that may be optional."""
    return declared.getElementType() if isinstance(declared, torch._C.OptionalType) else declared


def fill(argument: Any, operands: Sequence[Any]) -> Any:
    """An argument with what its operands stand for."""
    if isinstance(argument, Operand):
        return operands[argument.place]
    if isinstance(argument, list | tuple):
        return [fill(item, operands) for item in argument]
    return argument


def reads(argument: Any) -> bool:
    """Whether operands are in an argument."""
    if isinstance(argument, list | tuple):
        return any(map(reads, argument))
    return isinstance(argument, Operand)


def _known(argument: Any) -> Any:
    """An argument without operands as torch takes it."""
    return None if reads(argument) else fill(argument, ())


def _getter(argument: Any, is_number: bool) -> Callable[[Sequence[Tensor]], Any]:
    """From the operands to an argument with what it reads."""
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
