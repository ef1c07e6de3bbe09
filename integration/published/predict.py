"""Predict measured steps: plan each as it ran, and read the plan's time and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import frontends.jax as mw
from frontends import NoPlanError, Plan

from published.cases import GIB, Group, layers_of
from published.transformer import Step

_ENOUGH = 1 << 50
"""More memory than any plan needs, to price what did not fit."""


@dataclass(frozen=True)
class Prediction:
    """What was predicted of a plan, beside what was measured."""

    group: str
    family: str
    plan: str
    measured_s: float | None
    predicted_s: float
    measured_gib: float | None
    predicted_gib: float
    measured_fits: bool
    predicted_fits: bool

    @property
    def ratio(self) -> float | None:
        """Predicted by measured time."""
        return None if self.measured_s is None else self.predicted_s / self.measured_s

    def to_dict(self) -> dict[str, object]:
        """The fields by name."""
        return asdict(self)


def predict(
    groups: Iterable[Group], tell: Callable[[Prediction], None] = lambda _: None
) -> list[Prediction]:
    """Predict every plan of some groups."""
    found = []
    for group in groups:
        step = group.step()
        layered = layers_of(step, group.microbatches)
        for measured in group.plans:
            options = measured.options(layered)
            limit = measured.usable_bytes
            try:
                plan, fits = _plan(group, step, options, limit), True
            except NoPlanError:
                plan, fits = _plan(group, step, options, _ENOUGH), False
            prediction = Prediction(
                group.name,
                group.family,
                measured.name,
                measured.seconds,
                plan.step_s,
                measured.gib,
                plan.memory_bytes / GIB,
                measured.fits,
                fits,
            )
            tell(prediction)
            found.append(prediction)
    return found


def _plan(group: Group, step: Step, options: dict[str, Any], limit: int) -> Plan:
    function, arguments = step
    return mw.plan_for(
        function,
        arguments,
        group.cluster(),
        batch_argnums=len(arguments) - 1,
        microbatches=group.microbatches,
        memory_bytes=limit,
        advise=False,
        **options,
    ).plan
