from dataclasses import replace

import autoshard
import pytest
from frontends.answer.plan import Plan
from frontends.step.stage_memory import (
    KINDS,
    footprint,
    fullest_moment,
    held,
    memory_curves,
    peak_bytes,
)
from frontends.step.step import APPLY, BACKWARD, FORWARD


def test_curves_are_the_sums_of_what_is_held(priced_plan: Plan) -> None:
    for stage in priced_plan.stages:
        assert stage.sharding is not None
        curves = memory_curves(stage.sharding)
        assert list(curves) == list(KINDS)
        for at in range(len(stage.sharding.graph.operators)):
            now = [one for one in held(stage.sharding) if one.first <= at < one.last]
            assert sum(curve[at] for curve in curves.values()) == sum(o.n_bytes for o in now)
        least = autoshard.live_bytes(stage.sharding)
        for op, total, bound in zip(
            stage.sharding.graph.operators,
            map(sum, zip(*curves.values(), strict=True)),
            least,
            strict=True,
        ):
            assert total >= bound or op.phase == APPLY


def test_operands_of_a_program_are_held_until_it_ends(priced_plan: Plan) -> None:
    first, last = priced_plan.stages
    assert first.sharding is not None
    assert last.sharding is not None
    phases = [op.phase for op in first.sharding.graph.operators]
    ends = {phase: phases.index(phase + 1) for phase in (FORWARD, BACKWARD)}
    ends[APPLY] = len(phases)
    saved = [one for one in held(first.sharding) if one.kind == "activation"]
    assert saved
    for one in saved:
        assert one.last in ends.values()
        assert one.last > ends[FORWARD]


def test_forward_and_backward_are_one_program_where_one_is_in_flight(priced_plan: Plan) -> None:
    last = priced_plan.stages[-1].sharding
    assert last is not None
    assert last.options.in_flight == 1
    graph = last.graph
    read_last = {name: at for at, op in enumerate(graph.operators) for name in op.inputs}
    phases = [op.phase for op in graph.operators]
    made_in = {name: phases[at] for name, (at, _) in graph.producers.items()}
    saved = [
        one
        for one in held(last)
        if one.kind == "activation"
        and made_in.get(one.value) == FORWARD
        and phases[read_last[one.value]] == BACKWARD
    ]
    assert saved
    assert all(one.last == read_last[one.value] + 1 for one in saved)


def test_a_part_of_a_sum_is_held_beside_it(priced_plan: Plan) -> None:
    for stage in priced_plan.stages:
        assert stage.sharding is not None
        sums = [one for one in held(stage.sharding) if one.kind == "gradient"]
        assert sums
        for one in sums:
            made, _ = stage.sharding.graph.producers[one.value]
            assert one.first == 0
            beside = [o for o in held(stage.sharding) if o.value == one.value and o.first == made]
            assert [o.n_bytes for o in beside if o.kind == "temporary"] == [one.n_bytes]


def test_the_fullest_moment_is_the_peak(priced_plan: Plan) -> None:
    for stage in priced_plan.stages:
        assert stage.sharding is not None
        moment = fullest_moment(stage.sharding)
        curves = memory_curves(stage.sharding).values()
        totals = list(map(sum, zip(*curves, strict=True)))
        assert sum(moment.values()) == max(totals) == stage.memory_bytes
        assert peak_bytes(stage.sharding) == stage.memory_bytes
        assert moment["parameter"] > 0


@pytest.mark.parametrize("in_flight", [1, 2, 3, 5])
def test_a_footprint_knows_the_peak_for_any_number_in_flight(
    priced_plan: Plan, in_flight: int
) -> None:
    for stage in priced_plan.stages:
        assert stage.sharding is not None
        options = replace(stage.sharding.options, in_flight=in_flight)
        found = replace(stage.sharding, options=options)
        assert footprint(stage.sharding).peak_bytes(in_flight) == peak_bytes(found)
