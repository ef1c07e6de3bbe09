"""Which choices of what is computed again are searched."""

from dataclasses import dataclass, field, replace

import pytest
from frontends.answer.plan import Plan
from frontends.errors import NoPlanError
from frontends.plan.plan_fields import REMATS, Remat
from frontends.search.remat import with_remat


@dataclass
class Known:
    """Plans with known steps, which are short of memory; what is not there does not fit."""

    plan: Plan
    seconds: dict[Remat, float]
    bounds_s: dict[Remat, float] = field(default_factory=dict)
    searched: list[Remat] = field(default_factory=list)

    def fastest(self, remat: Remat) -> Plan:
        self.searched.append(remat)
        if remat not in self.seconds:
            raise NoPlanError("too large")
        return replace(self.plan, remat=remat, step_s=self.seconds[remat])

    def saved_bytes(self, remat: Remat) -> int:
        return 1000 >> REMATS.index(remat)

    def was_short(self, remat: Remat) -> bool:
        return True

    def bound_s(self, remat: Remat) -> float:
        return self.bounds_s.get(remat, 0.0)

    def in_other_schedules(self, plan: Plan) -> Plan:
        return plan


def test_all_are_searched_while_memory_is_short(example_plan: Plan) -> None:
    known = Known(example_plan, {"none": 4.0, "cheap": 3.0, "dots": 3.5, "all": 5.0})
    assert with_remat(known, None).remat == "cheap"
    assert known.searched == [*REMATS]


def test_what_cannot_be_faster_is_not_searched(example_plan: Plan) -> None:
    """Nor what computes still more again."""
    known = Known(example_plan, {"none": 4.0, "cheap": 3.0}, {"cheap": 2.9, "dots": 3.0})
    assert with_remat(known, None).remat == "cheap"
    assert known.searched == ["none", "cheap"]


def test_bounds_end_nothing_before_something_fits(example_plan: Plan) -> None:
    known = Known(example_plan, {"all": 9.0}, {"none": 5.0, "cheap": 6.0, "dots": 7.0, "all": 8.0})
    assert with_remat(known, None).remat == "all"
    assert known.searched == [*REMATS]


def test_without_a_plan_the_reason_is_the_first(example_plan: Plan) -> None:
    with pytest.raises(NoPlanError, match="too large"):
        with_remat(Known(example_plan, {}), None)
