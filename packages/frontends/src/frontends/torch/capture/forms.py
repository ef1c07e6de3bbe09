"""How a step is called: which of its arguments are the model, its optimizer, and the batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from frontends.errors import BatchError

Step = Callable[[nn.Module, Optimizer, Any], Any]
"""As it is captured: of a model, its optimizer and a batch."""


@dataclass(frozen=True, slots=True)
class Form:
    """The places of a step's arguments."""

    places: tuple[str, ...]
    """`model`, `optimizer` or `batch`, for each argument given by place."""

    names: tuple[str, ...]
    """Of the arguments given by name, which are all batch."""

    @classmethod
    def of(
        cls, model: nn.Module, optimizer: Optimizer, args: Sequence[Any], named: Mapping[str, Any]
    ) -> Form:
        """The form of a call, in which model and optimizer may be among the arguments.

        Raises:
            BatchError: Nothing is left that could be the batch.
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
        """The batch of a call: one argument, or a tuple of several, those with names in a dict.

        Raises:
            BatchError: The call has another form.
        """
        if len(args) != len(self.places) or named.keys() != set(self.names):
            raise BatchError(
                "a step is called in the form that it was planned for, with "
                f"{', '.join((*self.places, *self.names))}; got {len(args)} arguments by place, "
                f"and by name {', '.join(named) or 'none'}"
            )
        own: list[Any] = [a for a, p in zip(args, self.places, strict=True) if p == "batch"]
        if self.names:
            own.append({name: named[name] for name in self.names})
        return own[0] if len(own) == 1 else tuple(own)

    def step(self, function: Callable[..., Any]) -> Step:
        """The user's step as a function of model, optimizer and batch.

        Raises:
            BatchError: The user's step is not called so.
        """
        self._check(function)

        def step(model: nn.Module, optimizer: Optimizer, batch: Any) -> Any:
            n_parts = self.places.count("batch") + bool(self.names)
            parts = iter([batch] if n_parts == 1 else batch)
            given = {"model": model, "optimizer": optimizer}
            args = [next(parts) if place == "batch" else given[place] for place in self.places]
            named = next(parts) if self.names else {}
            return function(*args, **named)

        return step

    def _check(self, function: Callable[..., Any]) -> None:
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            return  # some callables of C have none
        try:
            signature.bind(*self.places, **dict.fromkeys(self.names))
        except TypeError as error:
            given = ", ".join((*self.places, *(f"{name}=" for name in self.names)))
            raise BatchError(
                f"a step is called as it is defined, with {signature}; got ({given}): {error}"
            ) from error
