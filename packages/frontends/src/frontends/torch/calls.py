"""One aten call of a step: the operator, and its arguments with tensors by place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

Tensor = torch.Tensor


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
        return self.target._schema.name.rpartition("::")[2]

    def __call__(self, operands: Sequence[Tensor]) -> list[Tensor]:
        """The call's tensors, in the order of the operator's outputs; what is None is left out."""
        numbers = _numbers_of(self.target)
        arguments = [
            operands[argument.place].item()
            if place in numbers and isinstance(argument, Operand)
            else fill(argument, operands)
            for place, argument in enumerate(self.arguments)
        ]
        keywords = {
            name: operands[value.place].item()
            if name in numbers and isinstance(value, Operand)
            else fill(value, operands)
            for name, value in self.keywords.items()
        }
        return tensors_of(self.target(*arguments, **keywords))

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
    found = [
        (place, declared.name)
        for place, declared in enumerate(target._schema.arguments)
        if isinstance(declared.type, torch._C.NumberType | torch._C.FloatType | torch._C.IntType)
    ]
    return frozenset(key for pair in found for key in pair)


def fill(argument: Any, operands: Sequence[Any]) -> Any:
    """An argument with what its operands stand for."""
    if isinstance(argument, Operand):
        return operands[argument.place]
    if isinstance(argument, list | tuple):
        return [fill(item, operands) for item in argument]
    return argument


def tensors_of(result: Any) -> list[Tensor]:
    """The tensors that a call returned."""
    if isinstance(result, torch.Tensor):
        return [result]
    return [item for item in result if isinstance(item, torch.Tensor)]
