"""Make a schedule for the costs and the memory of the stages that run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import autoshard
import pipesched
from shardspec.amounts import bytes_text
from stagecut import StageCost

from frontends.plan.plan_fields import Stage, Transfer
from frontends.program.predict import costs_of

COSTS, CAP = "costs", "activation_cap"
"""Options of schedules that are made for the stages that there are."""

_MEMORY = "memory_bytes"

_FITS = 4
"""How often such a schedule is made with less memory, as pipesched does not count all that a plan
does: messages that wait, and the most of each kind of memory at one time [chosen]."""


def options_of(schedule: str) -> tuple[str, ...]:
    """What a schedule can be made for; nothing if it is made, and this is its text."""
    is_name = pipesched.is_schedule(schedule)
    return pipesched.schedule_entry(schedule).options if is_name else ()


@dataclass(frozen=True)
class Fit:
    """A schedule that is made for some stages, and the stages as they run in it."""

    order: pipesched.Schedule
    stages: list[Stage]
    bound: int
    """The bytes a device that it was made for."""


@dataclass(frozen=True)
class Fitter:
    """Makes schedules for the costs and the memory of some stages."""

    stages: Sequence[Stage]
    """In any schedule; only their times are read."""

    transfers: Sequence[Transfer]
    prices: Sequence[StageCost]
    between_bytes: Sequence[int]
    """By stage, what a microbatch takes between the two parts of its backward."""

    memory_bytes: int
    """The limit of a device."""

    stages_in: Callable[[pipesched.Schedule], list[Stage]]
    """Returns the stages with the memory that they take in a schedule."""

    def fit(self, order: pipesched.Schedule, bound: int) -> Fit:
        """The schedule of the kind and the number of microbatches of another one that fits.

        Args:
            order: The other one.
            bound: Bytes a device to begin with; fewer are tried if it takes more than is there.

        Raises:
            InfeasibleError: It does not fit the memory.
        """
        for _ in range(_FITS):
            made = self._made(order, bound)
            stages = self.stages_in(made)
            excess = max(stage.memory_bytes for stage in stages) - self.memory_bytes
            if excess <= 0:
                return Fit(made, stages, bound)
            bound -= excess
        raise autoshard.InfeasibleError(
            f"{order.name} takes more than the {bytes_text(self.memory_bytes)} of a device"
        )

    def _made(self, order: pipesched.Schedule, bound: int) -> pipesched.Schedule:
        costs, limit = costs_of(self.stages, self.transfers, order), {}
        if _MEMORY in options_of(order.name):
            limit = {_MEMORY: bound}
            kept = [price.activation_bytes for price in self.prices]
            both = zip(kept, self.between_bytes, strict=True)
            costs = replace(
                costs,
                activation_bytes=kept,
                weight_gradient_bytes=[forward + backward for forward, backward in both],
                parameter_bytes=[price.peak_bytes(0) for price in self.prices],
            )
        try:
            return pipesched.make(
                order.name, len(self.prices), order.n_microbatches, costs=costs, **limit
            )
        except pipesched.InfeasibleError as error:
            raise autoshard.InfeasibleError(str(error)) from error
