"""Which choices of what is computed again, and of padding, are searched."""

from dataclasses import dataclass, field, replace

import pytest
from frontends.answer.plan import Plan
from frontends.errors import NoPlanError
from frontends.plan.plan_fields import REMATS, Remat
from frontends.search.padding import with_padding
from frontends.search.remat import with_remat


@dataclass
class Known:
    """Plans with known steps, which are short of memory; what is not there does not fit."""

    plan: Plan
    seconds: dict[Remat, float]
    usual_s: dict[Remat, float]
    bounds_s: dict[Remat, float] = field(default_factory=dict)
    alike_s: dict[Remat, float] = field(default_factory=dict)
    by_layer_s: dict[Remat, float] = field(default_factory=dict)
    in_schedules_s: dict[Remat, float] = field(default_factory=dict)
    short_in_schedules: set[Remat] = field(default_factory=set)
    roomy: set[Remat] = field(default_factory=set)
    looked: list[Remat] = field(default_factory=list)
    searched: list[Remat] = field(default_factory=list)

    def made(self, remat: Remat, step_s: float) -> Plan:
        stages = self.plan.stages[: None if self.in_schedules_s else 1]
        return replace(self.plan, remat=remat, step_s=step_s, stages=stages)

    def usual(self, remat: Remat) -> Plan | None:
        self.looked.append(remat)
        return self.made(remat, self.usual_s[remat]) if remat in self.usual_s else None

    def alike(self, remat: Remat, plan: Plan, usual: Plan) -> Plan:
        return self.made(remat, self.alike_s.get(remat, usual.step_s))

    def fastest(self, remat: Remat, promising: Plan | None = None) -> Plan:
        self.searched.append(remat)
        if remat not in self.seconds:
            raise NoPlanError(f"too large for {remat}")
        return self.made(remat, self.seconds[remat])

    def saved_bytes(self, remat: Remat) -> int:
        return 1000 >> REMATS.index(remat)

    def was_short(self, remat: Remat) -> bool:
        return remat not in self.roomy

    def bound_s(self, remat: Remat) -> float:
        return self.bounds_s.get(remat, 0.0)

    def by_layer(self, plan: Plan) -> Plan | None:
        step_s = self.by_layer_s.get(plan.remat, plan.step_s)
        return self.made(plan.remat, step_s) if step_s < plan.step_s else None

    def in_other_schedules(self, plan: Plan) -> Plan:
        self.roomy -= self.short_in_schedules & {plan.remat}
        step_s = self.in_schedules_s.get(plan.remat, plan.step_s)
        return self.made(plan.remat, min(step_s, plan.step_s))


FITTING: dict[Remat, float] = {"none": 6.0, "cheap": 5.0, "dots": 5.5, "all": 7.0}


def test_the_choice_with_the_fastest_baseline_is_searched(example_plan: Plan) -> None:
    known = Known(example_plan, {"cheap": 4.0}, FITTING)
    best = with_remat(known, None)
    assert (best.remat, best.step_s) == ("cheap", 4.0)
    assert (known.looked, known.searched) == ([*REMATS], ["cheap"])
    assert {a.name: a.step_s for a in best.alternatives if a.name.startswith("remat=")} == {
        "remat=none": 6.0,
        "remat=dots": 5.5,
        "remat=all": 7.0,
    }


def test_others_that_are_faster_in_its_stages_are_searched_too(example_plan: Plan) -> None:
    seconds: dict[Remat, float] = {"cheap": 4.0, "none": 3.0, "dots": 3.9}
    known = Known(example_plan, seconds, FITTING, alike_s={"none": 3.5, "dots": 3.8})
    assert with_remat(known, None).remat == "none"
    assert known.searched == ["cheap", "dots", "none"]


def test_a_plan_that_the_search_misses_is_kept(example_plan: Plan) -> None:
    """The search in another number of microbatches may find less than the stages of a plan."""
    known = Known(example_plan, {"cheap": 4.0, "dots": 3.9}, FITTING, alike_s={"dots": 3.8})
    assert with_remat(known, None).step_s == 3.8


def test_pipelines_that_compute_more_again_may_have_room_for_other_schedules(
    example_plan: Plan,
) -> None:
    seconds: dict[Remat, float] = {"none": 4.0, "cheap": 4.2, "dots": 4.5}
    schedules_s: dict[Remat, float] = {"none": 3.9, "cheap": 3.5, "dots": 3.7}

    def known(bounds_s: dict[Remat, float] | None = None) -> Known:
        known = Known(example_plan, seconds, FITTING, bounds_s or {}, in_schedules_s=schedules_s)
        known.roomy, known.short_in_schedules = {"none", "cheap", "dots"}, {"none", "cheap"}
        return known

    best = with_remat(plans := known(), None)
    assert (best.remat, best.step_s) == ("cheap", 3.5)
    assert plans.searched == ["none", "cheap", "dots"], "which has room for all"
    best = with_remat(plans := known({"none": 1.0, "cheap": 1000.0}), None)
    assert (best.step_s, plans.searched) == (3.9, ["none"]), "the work alone takes longer"
    assert with_remat(known(), "none").step_s == 3.9


def test_layers_that_compute_less_again_make_a_faster_plan(example_plan: Plan) -> None:
    seconds: dict[Remat, float] = {"cheap": 4.0, "dots": 3.9}
    known = Known(example_plan, seconds, FITTING, alike_s={"dots": 3.8}, by_layer_s={"dots": 3.0})
    best = with_remat(known, None)
    assert (best.remat, best.step_s) == ("dots", 3.0)
    assert {a.name: a.step_s for a in best.alternatives if a.name.startswith("remat=")} == {
        "remat=none": 6.0,
        "remat=cheap": 4.0,
        "remat=dots": 3.8,
        "remat=all": 7.0,
    }


def test_only_one_is_searched_where_memory_is_not_short(example_plan: Plan) -> None:
    known = Known(example_plan, {"none": 4.0}, FITTING, roomy={"none"})
    assert with_remat(known, None).remat == "none"
    assert (known.looked, known.searched) == (["none"], ["none"])


def test_only_one_is_searched_where_baselines_cannot_run_and_memory_is_not_short(
    example_plan: Plan,
) -> None:
    known = Known(example_plan, {"none": 4.0, "all": 1.0}, {}, roomy={"none"})
    assert with_remat(known, None).remat == "none"
    assert (known.looked, known.searched) == (["none"], ["none"])


def test_what_cannot_be_faster_is_not_looked_at(example_plan: Plan) -> None:
    """Nor what computes still more again; what is close to it is searched first."""
    bounds_s: dict[Remat, float] = {"cheap": 2.0, "dots": 4.6, "all": 6.0}
    known = Known(example_plan, {"cheap": 4.0}, FITTING, bounds_s)
    assert with_remat(known, None).remat == "cheap"
    assert (known.looked, known.searched) == (["none", "cheap"], ["cheap"])


def test_without_a_baseline_a_choice_is_searched_only_if_there_is_no_other(
    example_plan: Plan,
) -> None:
    known = Known(example_plan, {"none": 1.0, "all": 9.0}, {"all": 9.5})
    best = with_remat(known, None)
    assert (best.remat, known.searched) == ("all", ["all"])
    reasons = {a.name: a.reason for a in best.alternatives}
    assert "no baseline fits" in reasons["remat=none"]
    known = Known(example_plan, {"dots": 8.0, "all": 9.0}, {}, {"all": 8.5})
    assert with_remat(known, None).remat == "dots"
    assert known.searched == ["none", "cheap", "dots"]


def test_without_a_plan_the_reason_is_the_first(example_plan: Plan) -> None:
    known = Known(example_plan, {}, {})
    with pytest.raises(NoPlanError, match="too large for none"):
        with_remat(known, None)
    assert known.searched == [*REMATS]


def with_and_without_padding(plain: Known, padded: Known) -> Plan:
    return with_padding({False: plain, True: padded}, None)


def test_padding_is_searched_if_it_is_faster_without_a_search(example_plan: Plan) -> None:
    plain = Known(example_plan, {"none": 4.0}, FITTING, roomy={"none"})
    wide = replace(example_plan, padded_to=66)
    padded = Known(wide, {"cheap": 2.0}, {"none": 5.0, "cheap": 3.0})
    best = with_and_without_padding(plain, padded)
    assert (best.step_s, best.padded_to, padded.searched) == (2.0, 66, ["cheap"])
    (other,) = (a for a in best.alternatives if a.name == "without padding")
    assert other.step_s == 4.0


def test_padding_is_not_searched_if_it_is_slower_without_a_search(example_plan: Plan) -> None:
    plain = Known(example_plan, {"none": 4.0}, FITTING, roomy={"none"})
    padded = Known(replace(example_plan, padded_to=66), {"none": 3.0}, {"none": 5.0, "cheap": 4.5})
    best = with_and_without_padding(plain, padded)
    assert (best.step_s, best.padded_to, padded.searched) == (4.0, 0, [])
    (other,) = (a for a in best.alternatives if a.name == "padded to 66")
    assert other.step_s == 4.5


@pytest.mark.parametrize("is_padded", [False, True])
def test_one_way_is_enough(example_plan: Plan, is_padded: bool) -> None:
    fits, fails = Known(example_plan, {"none": 3.0}, {}), Known(example_plan, {}, {})
    plain, padded = (fails, fits) if is_padded else (fits, fails)
    assert with_and_without_padding(plain, padded).step_s == 3.0
    with pytest.raises(NoPlanError, match="too large for none"):
        with_and_without_padding(fails, Known(example_plan, {}, {}))
