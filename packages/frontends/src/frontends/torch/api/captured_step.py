"""What a training step and the functions that follow it have in common: how they are called."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from frontends.errors import PlanError
from frontends.run.planned_step import PlannedStep
from frontends.run.verify import Verified
from frontends.search.plan_step import Planned
from frontends.torch.api.variant import Variant
from frontends.torch.api.variants import Variants
from frontends.torch.api.verify import verify
from frontends.torch.capture.arguments import State
from frontends.torch.capture.forms import Form
from frontends.torch.run.runtime import Runtime
from frontends.torch.trace.trace import Trace


class CapturedStep(PlannedStep[Trace]):
    """A function of a model and an optimizer that is captured and planned for its calls.

    It takes the arguments of the original function, returns the same, and has the same effects on
    the user's objects. If a call does not fit the captured program, because of another shape of
    batch or another mode of a module, another variant is captured and planned.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        model: nn.Module,
        optimizer: Optimizer,
        variants: Variants,
    ) -> None:
        functools.update_wrapper(self, function)
        self._function, self.model, self.optimizer = function, model, optimizer
        self._variants = variants

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Run one step; if no variant fits the call, first capture and plan one.

        Raises:
            BatchError: The arguments cannot be a batch.
            UnsupportedStepError: The step cannot be captured; nothing is changed then.
        """
        return self._variants.call(arguments, named)

    def prepare(self, *arguments: Any, **named: Any) -> Planned[Trace]:
        """Capture and plan the step for these arguments, without placing its state."""
        return self._variants.at(arguments, named).planned

    def compile(self, *arguments: Any, **named: Any) -> Runtime:
        """Plan the step if it is not planned yet, and place its state on the devices.

        Without arguments, the variant of the last call is used.
        """
        if self.variants and not arguments and not named:
            return self.runtime
        return self._variants.at(arguments, named).runtime

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The programs of the step so far; a call runs the one that fits."""
        return tuple(self._variants.made)

    @property
    def runtime(self) -> Runtime:
        """The runtime of the plan of the last call.

        Raises:
            PlanError: The step has no plan yet.
        """
        return self._variants.current.runtime

    def verify(self, *arguments: Any, n_steps: int = 2, **named: Any) -> Verified:
        """Run some steps both in parallel and eagerly on one device, and compare.

        Both draw the same random numbers. Afterwards the state is as before.

        Args:
            arguments: The arguments of the step.
            n_steps: How many steps to run, all with these arguments.
            named: The keyword arguments of the step.

        Raises:
            PlanError: The model is on the meta device.
            VerificationError: Losses differ, or the collectives that ran are not the plan's.
        """
        self._check_has_memory("a run is compared with eager steps of a model")
        variant = self._variants.at(arguments, named)
        step = Form.of(self.model, self.optimizer, arguments, named).step(self._function)
        batch = variant.form.batch(arguments, named)

        def eager() -> Any:
            return step(self.model, self.optimizer, batch)

        def parallel() -> Any:
            self._variants.forget_writes()
            return self._variants.run(variant, arguments, named)[1]

        self._variants.move_to(variant)
        with self._variants.reading():
            keeper = self._variants.keeper(variant).runtime
            return verify(variant.runtime, keeper, self._state(), eager, parallel, n_steps)

    def _lacking_memory(self) -> list[str]:
        return [name for name, tensor in self._state().tensors.items() if tensor.is_meta]

    def _check_has_memory(self, what: str) -> None:
        lacking = self._lacking_memory()
        if lacking:
            raise PlanError(
                f"{what} with memory on one device; {lacking[0]} and {len(lacking) - 1} others are "
                "on the meta device: use a model of the same kind that a device can hold"
            )

    def _state(self) -> State:
        return State(self.model, self.optimizer)
