"""The gradients that parameters have before a step, and those that they have after it.

A step that calls `zero_grad()` does not depend on the gradients from before. Without it, as when
gradients are summed over several calls, they are inputs of the program like any other tensor, and
the new ones are results. To find out which of the two it is, every parameter gets a gradient while
the step is captured.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from frontends.errors import UnsupportedStepError
from frontends.torch.capture.arguments import State
from frontends.torch.capture.gone import GoneError, GoneGradient

Tensor = torch.Tensor


class Gradients:
    """The gradients of the parameters that the optimizer updates.

    Args:
        state: The state of model and optimizer.
        objects: The tensors that represent it during the capture, by name.
        pretended: Whether parameters without a gradient get one during the capture.
    """

    def __init__(self, state: State, objects: Mapping[str, Tensor], pretended: bool) -> None:
        self._all = {n: objects[f"params[{n!r}]"] for n in state.name_of.values()}
        groups = state.optimizer.param_groups
        updated = {state.name_of.get(id(p)) for group in groups for p in group["params"]}
        updated |= {
            n for n, p in self._all.items() if any(p is q for g in groups for q in g["params"])
        }
        self._mine = {n: p for n, p in self._all.items() if n in updated}
        self.parameters = {n: p for n, p in self._mine.items() if p.requires_grad}
        self.there = {n: is_there(p) for n, p in self.parameters.items()}
        """Which parameters have a gradient when the step begins."""

        self.tensors: dict[str, Tensor] = {}
        """The gradients that are inputs of the step, by name; on the meta device if pretended."""

        for name, parameter in self.parameters.items():
            gradient = gradient_of(parameter)
            if gradient is not None:
                self.tensors[name_of(name)] = gradient
            elif pretended:
                self.tensors[name_of(name)] = torch.empty_like(parameter, device="meta")
        self._gone = [n for n, p in self.parameters.items() if isinstance(p.grad, GoneGradient)]
        self._pretended = pretended
        self._before = {n: p.grad for n, p in self._all.items()}
        self._after: dict[str, Tensor | None] = {}
        self._stand_ins: dict[str, Tensor] = {}
        self._was_none: set[int] = set()
        self._is_stepped = False

    @contextmanager
    def watched(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """Inside, the step is captured; afterwards all parameters have their gradients again.

        Args:
            tensors: Stand-ins by name; parameters get those of pretended gradients.
        """
        for parameter in self._all.values():
            if not is_there(parameter):
                parameter.grad = None
        for name, parameter in self.parameters.items():
            if not self.there[name] and name_of(name) in tensors:
                self._stand_ins[name] = tensors[name_of(name)]
                parameter.grad = self._stand_ins[name]
        handle = register_optimizer_step_post_hook(self._stepped)
        at_begin = {name: p.grad for name, p in self._mine.items()}
        try:
            yield
            self._after = {
                name: p.grad
                for name, p in self._mine.items()
                if name in self.parameters or p.grad is not at_begin[name]
            }
        finally:
            handle.remove()
            for name, parameter in self._all.items():
                parameter.grad = self._before[name]

    def _stepped(self, *args: Any) -> None:
        self._is_stepped = True

    def is_none(self, tensor: Tensor) -> None:
        """Record that the step sets a tensor's gradient to None."""
        self._was_none.add(id(tensor))

    def is_reset(self, tensor: Tensor) -> bool:
        """Return whether the step has set a tensor's gradient to None."""
        return id(tensor) in self._was_none

    def left(self) -> dict[str, Tensor]:
        """Return the gradients after the step, by the parameter's name.

        They include those of parameters for which the step sets `requires_grad`.
        """
        return {n: g for n, g in self._after.items() if g is not None}

    def emptied(self) -> tuple[str, ...]:
        """Return the parameters whose gradient is None after the step."""
        return tuple(n for n, g in self._after.items() if g is None)

    def are_read(self, inputs: Collection[str]) -> bool:
        """Return whether the step depends on pretended gradients: capture it without them then.

        Args:
            inputs: The inputs that its program reads.

        Raises:
            UnsupportedStepError: It depends on gradients that a previous step has not kept.
        """
        is_read = any(
            name_of(name) in inputs or self._after.get(name) is stand_in
            for name, stand_in in self._stand_ins.items()
        )
        if is_read and self._gone:
            raise UnsupportedStepError(
                "a step that goes on with the gradients of the one before does so at every call; "
                f"that of {self._gone[0]!r} was set to None and used in the last one, and was not "
                "kept: call zero_grad() in every step, or accumulate gradients inside of one"
            )
        return is_read

    def are_kept(self, inputs: Collection[str]) -> bool:
        """Return whether the gradients after the step are needed later.

        They are if the step adds to those of the step before, or leaves the update to its caller.

        Args:
            inputs: The inputs that its program reads.
        """
        return self.are_looked_at(inputs) or not self._is_stepped

    def are_looked_at(self, inputs: Collection[str]) -> bool:
        """Return whether the step depends on which parameters have a gradient.

        Args:
            inputs: The inputs that its program reads.
        """
        is_read = any(name_of(name) in inputs for name in self.parameters)
        is_reset = all(self.is_reset(p) for p in self.parameters.values())
        return is_read or not is_reset or not self._pretended


class UntouchedGradients(Gradients):
    """The gradients of parameters while a function is captured that leaves them alone.

    A function that follows a step, such as an evaluation, neither reads the gradients of parameters
    nor updates parameters by them; the user's are there again when it returns.

    Args:
        state: The state of model and optimizer.
        objects: The tensors that represent it during the capture, by name.
    """

    def __init__(self, state: State, objects: Mapping[str, Tensor]) -> None:
        super().__init__(state, objects, pretended=False)
        self.tensors = {}

    @contextmanager
    def watched(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """Inside, the function is captured.

        Raises:
            UnsupportedStepError: The function reads, sets or updates gradients, or updates by them.
        """
        placeholders = {name: GoneGradient(p) for name, p in self._all.items()}
        for name, parameter in self._all.items():
            parameter.grad = placeholders[name]
        handle = register_optimizer_step_post_hook(self._stepped)
        what = None
        try:
            yield
            changed = (n for n, p in self._all.items() if p.grad is not placeholders[n])
            what = next((f"sets that of {name!r}" for name in changed), what)
        except GoneError:
            what = "uses or computes one"
        finally:
            handle.remove()
            for name, parameter in self._all.items():
                parameter.grad = self._before[name]
        if self._is_stepped:
            what = "calls the optimizer's step()"
        if what is not None:
            raise UnsupportedStepError(
                "a function that follows a step leaves the gradients of parameters, and updates by "
                f"them, to the step; this one {what}: compute under torch.no_grad(), or with "
                "torch.autograd.grad if it needs a derivative"
            )

    def are_read(self, inputs: Collection[str]) -> bool:
        """Return False: nothing is pretended."""
        return False

    def are_kept(self, inputs: Collection[str]) -> bool:
        """Return False: there are none afterwards."""
        return False

    def are_looked_at(self, inputs: Collection[str]) -> bool:
        """Return False: the function does not depend on which parameters have a gradient."""
        return False


def is_there(parameter: Tensor) -> bool:
    """Return whether a parameter has a gradient with values."""
    return gradient_of(parameter) is not None


def gradient_of(parameter: Tensor) -> Tensor | None:
    """Return a parameter's gradient if it has values, else None."""
    return None if isinstance(parameter.grad, GoneGradient) else parameter.grad


def name_of(parameter: str) -> str:
    """Return the name of a parameter's gradient as an argument."""
    return f"gradients[{parameter!r}]"
