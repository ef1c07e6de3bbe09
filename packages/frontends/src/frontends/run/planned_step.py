"""The properties of a parallel step that are the same in both frameworks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from frontends.answer.plan import Plan
from frontends.errors import ArgumentError, PlanError
from frontends.report.explain import Explanation
from frontends.search.plan_step import Planned, TracedT


class PlannedVariant(Protocol[TracedT]):
    """A variant of a step: one of the programs that it becomes, with its plan."""

    planned: Planned[TracedT]


VariantT = TypeVar("VariantT")


class PlannedStep(ABC, Generic[TracedT]):
    """A step that is planned at its first call, and again for calls that need another plan."""

    _function: Callable[..., Any]

    def __repr__(self) -> str:
        variants = self.variants
        planned = repr(self.plan) if variants else "not planned yet"
        more = f", {len(variants)} variants" if len(variants) > 1 else ""
        return f"<ParallelStep of {self._name}: {planned}{more}>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be copied or pickled: the state is on devices, in a plan's layouts."""
        raise ArgumentError(
            f"a step that runs by a plan cannot be copied or pickled; got {self._name}: "
            "parallelize the function again, with plan=step.plan to plan no second time, and copy "
            "or save the state (docs/step.md)"
        )

    @property
    def _name(self) -> str:
        return getattr(self._function, "__name__", repr(self._function))

    @property
    @abstractmethod
    def variants(self) -> Sequence[PlannedVariant[TracedT]]:
        """The variants that are planned, that of the first call first."""

    @property
    def planned(self) -> Planned[TracedT]:
        """Trace, layers and plan of the first variant; `PlanError` before the first call."""
        return first_of(self.variants).planned

    @property
    def plan(self) -> Plan:
        """The plan of the first variant, whose layouts all others keep; prints as a table."""
        return self.planned.plan

    def explain(self, name: str) -> Explanation:
        """Why an operator or a value has its layouts and its stage, and what others would cost.

        Args:
            name: An operator, a value, or an argument by its path, such as `params['head']`.

        Raises:
            PlanError: The step has no plan yet, or the plan has no operator or value of that name.
        """
        return self.plan.explain(name)


def first_of(variants: Sequence[VariantT]) -> VariantT:
    """The variant of the first call; `PlanError` before it."""
    if not variants:
        raise PlanError("a step has a plan after its first call, or after prepare(*arguments)")
    return variants[0]
