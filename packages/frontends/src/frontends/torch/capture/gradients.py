"""Gradients that a step finds when it begins, and those that it leaves.

`zero_grad()` makes them nothing that a step depends on. Without it, as where gradients are summed
over several calls, they are given to the program as any other tensor, and handed back. Which of the
two it is, is seen by giving every parameter a gradient while the step is captured.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from frontends.errors import UnsupportedStepError
from frontends.torch.capture.arguments import State
from frontends.torch.capture.gone import GoneGradient

Tensor = torch.Tensor


class Gradients:
    """Those of the parameters that the optimizer updates.

    Args:
        state: Of model and optimizer.
        objects: The objects that stand for it, by name.
        pretended: Whether parameters without a gradient are to have one.
    """

    def __init__(self, state: State, objects: Mapping[str, Tensor], pretended: bool) -> None:
        self._all = {n: objects[f"params[{n!r}]"] for n in state.name_of.values()}
        groups = state.optimizer.param_groups
        mine = {state.name_of.get(id(p)) for group in groups for p in group["params"]}
        mine |= {
            n for n, p in self._all.items() if any(p is q for g in groups for q in g["params"])
        }
        self._mine = {n: p for n, p in self._all.items() if n in mine}
        self.parameters = {n: p for n, p in self._mine.items() if p.requires_grad}
        self.there = {n: is_there(p) for n, p in self.parameters.items()}
        """Which parameters have one when the step begins."""

        self.tensors: dict[str, Tensor] = {}
        """Those that the step is given, by name; without memory where there is none."""

        for name, parameter in self.parameters.items():
            there = gradient_of(parameter)
            if there is not None:
                self.tensors[name_of(name)] = there
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
        """Capture inside; gradients are afterwards what they were.

        Args:
            tensors: Stand-ins by name, of which parameters get those that they are to have.
        """
        for parameter in self._all.values():
            if not is_there(parameter):
                parameter.grad = None
        for name, parameter in self.parameters.items():
            if not self.there[name] and name_of(name) in tensors:
                self._stand_ins[name] = tensors[name_of(name)]
                parameter.grad = self._stand_ins[name]
        handle = register_optimizer_step_post_hook(self._stepped)
        given = {name: p.grad for name, p in self._mine.items()}
        try:
            yield
            self._after = {
                name: p.grad
                for name, p in self._mine.items()
                if name in self.parameters or p.grad is not given[name]
            }
        finally:
            handle.remove()
            for name, parameter in self._all.items():
                parameter.grad = self._before[name]

    def _stepped(self, *args: Any) -> None:
        self._is_stepped = True

    def is_none(self, tensor: Tensor) -> None:
        """A tensor's gradient is set to None."""
        self._was_none.add(id(tensor))

    def is_reset(self, tensor: Tensor) -> bool:
        """Whether a tensor's gradient was set to None in the step."""
        return id(tensor) in self._was_none

    def left(self) -> dict[str, Tensor]:
        """The gradients that the step leaves, by the parameter's name.

        Those of parameters that get gradients from this step on are among them.
        """
        return {n: g for n, g in self._after.items() if g is not None}

    def emptied(self) -> tuple[str, ...]:
        """Parameters that have no gradient when the step is done."""
        return tuple(n for n, g in self._after.items() if g is None)

    def are_read(self, inputs: Collection[str]) -> bool:
        """Whether the step depends on gradients that are not there: capture it without them.

        Args:
            inputs: Those that its program reads.

        Raises:
            UnsupportedStepError: It depends on gradients that a step before has not kept.
        """
        found = any(
            name_of(name) in inputs or self._after.get(name) is stand_in
            for name, stand_in in self._stand_ins.items()
        )
        if found and self._gone:
            raise UnsupportedStepError(
                "a step that goes on with the gradients of the one before does so at every call; "
                f"that of {self._gone[0]!r} was set to None and used in the last one, and was not "
                "kept: call zero_grad() in every step, or add gradients up inside of one"
            )
        return found

    def are_kept(self, inputs: Collection[str]) -> bool:
        """Whether the gradients that the step leaves are looked at later.

        That is so if it adds to those of the step before, or leaves the update to its caller.

        Args:
            inputs: Those that its program reads.
        """
        return self.are_looked_at(inputs) or not self._is_stepped

    def are_looked_at(self, inputs: Collection[str]) -> bool:
        """Whether it matters to the step which parameters have a gradient.

        Args:
            inputs: Those that its program reads.
        """
        is_read = any(name_of(name) in inputs for name in self.parameters)
        is_reset = all(self.is_reset(p) for p in self.parameters.values())
        return is_read or not is_reset or not self._pretended


def is_there(parameter: Tensor) -> bool:
    """Whether a parameter has a gradient with values."""
    return gradient_of(parameter) is not None


def gradient_of(parameter: Tensor) -> Tensor | None:
    """A parameter's gradient, if it has values."""
    return None if isinstance(parameter.grad, GoneGradient) else parameter.grad


def name_of(parameter: str) -> str:
    """The name of a parameter's gradient, as an argument."""
    return f"gradients[{parameter!r}]"
