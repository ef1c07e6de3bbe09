"""The form of a call of a step: which arguments are the model, the optimizer, and the batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from frontends.errors import BatchError

Step = Callable[[nn.Module, Optimizer, Any], Any]
"""A step as it is captured: a function of model, optimizer and batch."""


@dataclass(frozen=True, slots=True)
class Form:
    """What each argument of a step is."""

    places: tuple[str, ...]
    """For each positional argument `model`, `optimizer` or `batch`."""

    names: tuple[str, ...]
    """The names of the keyword arguments, which all belong to the batch."""

    @classmethod
    def of(
        cls, model: nn.Module, optimizer: Optimizer, args: Sequence[Any], named: Mapping[str, Any]
    ) -> Form:
        """Return the form of a call, in which model and optimizer may be among the arguments.

        Raises:
            BatchError: No argument is left that could be the batch.
        """
        known = {id(model): "model", id(optimizer): "optimizer"}
        places = tuple(known.get(id(argument), "batch") for argument in args)
        if "batch" not in places and not named:
            raise BatchError(
                "a step is planned for a batch: call it with one, as it will be trained with; got "
                f"{', '.join(places) or 'no arguments'}"
            )
        return cls(places, tuple(named))

    def batch(self, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Return the batch of a call.

        It is one argument, or a tuple of several; keyword arguments count as one, a dict.

        Raises:
            BatchError: The call has another form.
        """
        if len(args) != len(self.places) or named.keys() != set(self.names):
            raise BatchError(
                "a step is called in the form that it was planned for, with "
                f"{', '.join((*self.places, *self.names))}; got {len(args)} arguments by place, "
                f"and by name {', '.join(named) or 'none'}"
            )
        parts: list[Any] = [a for a, p in zip(args, self.places, strict=True) if p == "batch"]
        if self.names:
            parts.append({name: named[name] for name in self.names})
        return parts[0] if len(parts) == 1 else tuple(parts)

    def step(self, function: Callable[..., Any]) -> Step:
        """Return the user's step as a function of model, optimizer and batch.

        Raises:
            BatchError: The user's step does not have these arguments.
        """
        self._check(function)

        def step(model: nn.Module, optimizer: Optimizer, batch: Any) -> Any:
            n_parts = self.places.count("batch") + bool(self.names)
            parts = iter([batch] if n_parts == 1 else batch)
            others = {"model": model, "optimizer": optimizer}
            args = [next(parts) if place == "batch" else others[place] for place in self.places]
            named = next(parts) if self.names else {}
            return function(*args, **named)

        return step

    def _check(self, function: Callable[..., Any]) -> None:
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            return  # some callables written in C have no signature
        try:
            signature.bind(*self.places, **dict.fromkeys(self.names))
        except TypeError as error:
            arguments = ", ".join((*self.places, *(f"{name}=" for name in self.names)))
            raise BatchError(
                f"a step is called as it is defined, with {signature}; got ({arguments}): {error}"
            ) from error
