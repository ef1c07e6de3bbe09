"""The number of microbatches that is searched: which are looked at, and how closely."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
from costmodel import Cluster, Level, Link
from frontends.answer.plan import Plan
from frontends.errors import NoPlanError
from frontends.jax.testing import mlp
from frontends.jax.trace import trace
from frontends.layers.layers import layer
from frontends.plan.plan_fields import Alternative
from frontends.search.microbatches import alike, with_microbatches
from frontends.search.plan_options import PlanOptions
from frontends.search.planner import Planner

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
SLOW = replace(CLUSTER, levels=(Level("network", 2, Link(1e-6, 1e6)),))
"""A network on which a gradient costs more than an activation, so that a pipeline pays."""


@cache
def pipeline() -> Plan:
    """A plan of two stages."""
    return planner(2).best()


def planner(
    microbatches: int, strategy: str = "equal_layers", schedule: str | None = None
) -> Planner:
    step = layer(mlp().trace(microbatches).step, 4)
    return Planner(step, SLOW, PlanOptions(strategy=strategy, schedule=schedule))


@dataclass
class Known:
    """Plans with known steps in numbers of microbatches; what is not there does not fit."""

    usual_s: Mapping[int, float] = field(default_factory=dict)
    best_s: Mapping[int, float] = field(default_factory=dict)
    like_s: Mapping[int, float] = field(default_factory=dict)
    alone_s: Mapping[int, float] = field(default_factory=dict)
    bound_s: float = 0.0
    roomy_from: int = 0
    """Microbatches that are small enough for pipelines."""
    n_stages: int = 2
    fewest: int = 2
    zero_from: int = 0
    """Microbatches that are small enough for the baseline `zero`; 0 if it always fits."""
    fits_from: int = 1
    """Microbatches that leave room for anything."""
    fits_usual_from: int = 1
    """Microbatches that leave room for a baseline."""

    looked: list[int] = field(default_factory=list)
    searched: list[int] = field(default_factory=list)
    alike: list[int] = field(default_factory=list)
    alone: list[int] = field(default_factory=list)

    def found(self, promising: Plan | None = None) -> Plan:
        return with_microbatches(self.of, self.fewest, [32], self, promising)

    def of(self, n: int) -> Numbered:
        return Numbered(self, n)

    def fits(self, n: int) -> bool:
        return n >= self.fits_from

    def fits_usual(self, n: int) -> bool:
        return n >= self.fits_usual_from

    def plan(self, n: int, steps: Mapping[int, float]) -> Plan:
        if n not in steps:
            raise NoPlanError
        equal = Alternative("equal_layers", 9.0 if n >= self.roomy_from else None, None, "")
        return replace(
            pipeline(),
            stages=pipeline().stages[: self.n_stages],
            microbatches=n,
            step_s=steps[n],
            alternatives=(equal, *self.zero(n)),
        )

    def zero(self, n: int) -> tuple[Alternative, ...]:
        """The baseline as planners tell it: in the first number, also in the whole batch."""
        whole = [1] if n == self.fewest else []
        return tuple(
            Alternative(
                "zero" if m == n else "zero, 1 microbatch",
                9.0 if m >= self.zero_from else None,
                None,
                "",
            )
            for m in (n, *whole)
        )


@dataclass
class Numbered:
    known: Known
    n: int

    def usual(self) -> Plan:
        self.known.looked.append(self.n)
        return self.known.plan(self.n, self.known.usual_s)

    def best(self) -> Plan:
        self.known.searched.append(self.n)
        return self.known.plan(self.n, self.known.best_s)

    def like(self, other: Plan) -> Plan | None:
        self.known.alike.append(self.n)
        has_room = self.n in self.known.like_s
        return self.known.plan(self.n, self.known.like_s) if has_room else None

    def in_one_stage(self) -> Plan | None:
        self.known.alone.append(self.n)
        has_room = self.n in self.known.alone_s
        return self.known.plan(self.n, self.known.alone_s) if has_room else None

    def one_stage_bound_s(self) -> float:
        return self.known.bound_s


def test_only_the_number_with_the_fastest_usual_plan_is_searched() -> None:
    known = Known({2: 8.0, 4: 5.0, 8: 6.0}, {2: 4.0, 4: 3.0, 8: 4.0})
    assert known.found().microbatches == 4
    assert (known.looked, known.searched) == ([2, 4, 8], [4])
    assert sorted(known.alike) == [2, 8]


def test_numbers_are_looked_at_until_pipelines_have_room() -> None:
    known = Known({2: 9.0, 4: 9.5, 16: 3.0, 32: 4.0}, {16: 2.0}, roomy_from=16)
    assert known.found().step_s == 2.0
    assert (known.looked, known.searched) == ([2, 4, 8, 16, 32], [16])


def test_more_microbatches_are_not_tried_for_one_stage_where_pipelines_fit() -> None:
    known = Known({2: 8.0}, {2: 8.0}, n_stages=1)
    assert known.found().microbatches == 2
    assert (known.looked, known.searched, known.alike) == ([2], [2], [])


def test_stages_that_are_faster_in_another_number_have_that_searched_too() -> None:
    known = Known({2: 8.0, 4: 8.0}, {2: 7.0, 8: 4.0}, like_s={4: 6.0, 8: 5.0, 16: 5.0})
    best = known.found()
    assert (best.microbatches, best.step_s) == (8, 4.0)
    assert (known.searched, known.alike) == ([2, 8], [4, 8, 16, 16, 4])


def test_fewer_microbatches_are_searched_if_one_stage_fits_there_and_is_faster() -> None:
    usual = {16: 8.0, 32: 9.0}
    known = Known(usual, {16: 7.0, 4: 5.0}, alone_s={4: 6.0, 8: 6.5}, roomy_from=16)
    assert known.found().step_s == 5.0
    assert (known.searched, known.alone) == ([16, 4], [1, 4, 2, 1, 2])


def test_the_whole_batch_is_searched_where_a_baseline_is_the_fastest_in_it() -> None:
    """Plans in the first number are also baselines in the whole batch, without a search there."""
    known = Known({8: 4.0}, {8: 4.0, 1: 3.0}, n_stages=1, fewest=8, alone_s={1: 3.0})
    assert known.found().step_s == 3.0
    assert (known.searched, known.alone) == ([8, 1], [1])


def test_one_stage_is_not_tried_where_its_bound_is_longer() -> None:
    known = Known({8: 8.0, 16: 9.0}, {8: 7.0}, alone_s={2: 1.0}, bound_s=7.0, roomy_from=8)
    assert known.found().microbatches == 8
    assert (known.searched, known.alone) == ([8], [])


def test_numbers_are_searched_from_many_to_few_where_no_usual_plan_fits() -> None:
    known = Known({}, {4: 3.9, 8: 4.0, 16: 4.2, 32: 5.0})
    assert known.found().step_s == 3.9
    assert known.searched == [2, 32, 16, 8, 4]


def test_fewer_are_not_searched_where_that_is_slower() -> None:
    known = Known({}, {4: 1.0, 8: 4.0, 16: 4.0, 32: 4.0})
    assert known.found().step_s == 4.0
    assert known.searched == [2, 32, 16]


def test_the_first_number_that_has_room_is_searched_where_baselines_cannot_run() -> None:
    known = Known({}, {2: 4.0, 4: 4.0, 32: 1.0})
    assert known.found().step_s == 4.0
    assert known.searched == [2]


def test_numbers_without_room_are_not_looked_at() -> None:
    known = Known({16: 5.0}, {16: 4.0}, alone_s={8: 3.0}, fits_from=16, fits_usual_from=16)
    assert known.found().step_s == 4.0
    assert (known.looked, known.searched, known.alike, known.alone) == ([16, 32], [16], [32], [])


def test_baselines_are_not_looked_at_without_room_for_them() -> None:
    known = Known({32: 5.0}, {32: 4.0, 16: 3.0}, like_s={16: 3.5}, fits_usual_from=32)
    assert known.found().step_s == 3.0
    assert (known.looked, known.searched) == ([32], [32, 16])


def test_where_nothing_has_room_the_most_microbatches_say_why() -> None:
    known = Known(fits_from=64, fits_usual_from=64)
    with pytest.raises(NoPlanError):
        known.found()
    assert (known.looked, known.searched) == ([], [32])


def test_the_number_of_a_promising_plan_is_searched_first() -> None:
    known = Known({2: 8.0, 4: 9.0}, {2: 7.0, 16: 5.0})
    assert known.found(replace(pipeline(), microbatches=16, step_s=6.0)).step_s == 5.0
    assert known.searched == [16]


@pytest.mark.parametrize(
    ("like_s", "alone_s", "expected", "alike_at"),
    [
        ({}, {}, (8, 5.0), {8, 16}),
        ({8: 4.0, 4: 3.0, 2: 2.99}, {}, (4, 3.0), {2, 4, 8, 16}),
        ({16: 4.0, 4: 1.0}, {}, (16, 4.0), {8, 16}),
        ({8: 4.9}, {4: 3.5, 8: 3.6}, (4, 3.5), {4, 8, 16}),
        ({}, {4: 6.5}, (8, 5.0), {8, 16}),
    ],
)
def test_what_is_found_without_a_search(
    like_s: Mapping[int, float],
    alone_s: Mapping[int, float],
    expected: tuple[int, float],
    alike_at: set[int],
) -> None:
    """With the stages of a plan in 16 microbatches, where the fastest baseline has 8."""
    known = Known(like_s=like_s, alone_s=alone_s)
    other = replace(pipeline(), microbatches=16, step_s=6.0)
    usual = replace(pipeline(), microbatches=8, step_s=5.0)
    found = alike(known.of, other, usual, known.fewest, [32], known)
    assert (found.microbatches, found.step_s) == expected
    assert ({*known.alike}, known.searched) == (alike_at, [])


def test_fewer_microbatches_are_looked_at_where_a_baseline_needs_some() -> None:
    usual = {4: 3.0, 8: 4.0, 16: 4.5}
    known = Known(usual, {4: 2.5}, fewest=8, zero_from=4)
    assert known.found().step_s == 2.5
    assert (known.looked, known.searched) == ([8, 16, 4, 2], [4])


@pytest.mark.parametrize("zero_from", [0, 16])
def test_fewer_microbatches_are_not_looked_at_without_need(zero_from: int) -> None:
    known = Known({8: 4.0, 16: 4.5}, {8: 3.0}, fewest=8, zero_from=zero_from)
    assert known.found().microbatches == 8
    assert known.looked == [8, 16]


def test_nothing_that_fits_raises_the_reason() -> None:
    with pytest.raises(NoPlanError):
        Known().found()


def test_other_numbers_are_told_as_alternatives() -> None:
    found = Known({2: 8.0, 4: 5.0, 8: 6.0}, {4: 3.0}).found()
    assert [(a.name, a.step_s, a.reason) for a in found.alternatives if a.name[0].isdigit()] == [
        ("2 microbatches", 8.0, "2.67 times as long a step, by equal_layers"),
        ("8 microbatches", 6.0, "2.00 times as long a step, by equal_layers"),
    ]


def test_a_planner_takes_stages_that_are_faster_than_those_it_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searching, other = planner(4, "search"), planner(2, "search").best()
    slow = searching.best()
    monkeypatch.setattr(searching, "_plans", {"search": replace(slow, step_s=9.0)})
    alike = searching.like(other)
    assert alike is not None
    assert [s.last_layer for s in alike.stages] == [s.last_layer for s in other.stages]
    assert alike.microbatches == 4
    assert searching.best().step_s == alike.step_s
    alike.verify()


@pytest.mark.parametrize("schedule", ["dualpipe", "interleaved-1f1b"])
def test_stages_of_schedules_with_several_a_rank_are_tried_too(schedule: str) -> None:
    other = planner(4, "search", schedule).best()
    assert len(other.stages) == 4
    alike = planner(8, "search", schedule).like(other)
    assert alike is not None
    assert (len(alike.stages), alike.schedule) == (4, schedule)
    alike.verify()


def test_stages_that_share_ranks_are_not_tried_in_plain_schedules() -> None:
    assert planner(8, "search").like(planner(4, "search", "interleaved-1f1b").best()) is None


def test_stages_are_not_tried_in_fewer_microbatches_than_the_schedule_runs() -> None:
    other = planner(4, "search", "dualpipe").best()
    assert planner(1, "search", "dualpipe").like(other) is None


def test_a_planner_of_one_strategy_takes_no_other_stages() -> None:
    assert planner(4).like(pipeline()) is None
    assert planner(4).one_stage_bound_s() == float("inf")


def test_one_stage_does_not_beat_its_bound() -> None:
    searching = planner(2, "search")
    alone = searching.in_one_stage()
    assert alone is not None
    assert len(alone.stages) == 1
    assert searching.one_stage_bound_s() <= alone.step_s * (1 + 1e-9)


def test_a_step_that_runs_in_any_number_is_traced_whole_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []
    program = trace.Capture._program

    def counted(self: trace.Capture, flat: Any, microbatches: int, over: Any) -> Any:
        made.append((microbatches, over))
        return program(self, flat, microbatches, over)

    monkeypatch.setattr(trace.Capture, "_program", counted)
    example = mlp()
    captured = trace.Capture(example.function, example.arguments, (2,))
    steps = [captured.at(n).step for n in (2, 4)]
    assert made.count((1, "time")) == 1
    again = trace.Capture(example.function, example.arguments, (2,)).at(4).step
    assert steps[1] == again
