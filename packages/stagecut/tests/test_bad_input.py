"""What is no size, time or memory is refused by name, wherever it is given."""

import math
import re
from functools import partial

import numpy as np
import pytest
from stagecut import (
    Boundary,
    HostKind,
    InvalidInputError,
    Places,
    StageCost,
    StagePlan,
    assign_devices,
    at_marks,
    cluster_operators,
    equal_layers,
    pipeline_time_s,
    plan_stages,
    price_stages,
    repeated_blocks,
    slice_stages,
    split_graph,
    submesh_shapes,
)
from stagecut.plan.timeline import simulate

NO_AMOUNTS = [-1, -0.5, math.nan, math.inf, "1", ()]
NO_COUNTS = [*NO_AMOUNTS, 0, 1.5, np.float64(2.0)]
HUGE = [10**30, 2**40]


def cost(first, last, submesh, *_):
    return StageCost((last - first + 1) / submesh[1], 1, 1)


def with_value(call, producer=0, n_bytes=4, consumers=(1,)):
    return call([Boundary(producer, n_bytes, consumers)])


NODES = [StageCost(1.0, 1, 1)] * 3
SPANS = [(0, 1, (1, 2)), (2, 3, (1, 2))]
SLICE = partial(slice_stages, 4, (2, 2), 4, cost)
PRICE = partial(price_stages, SPANS, 4, cost)
SPLIT = partial(split_graph, NODES, [], transfer_s=lambda n_bytes: 1.0)
PLAN = partial(plan_stages, 4, (2, 2), 4, cost)
EQUAL = partial(equal_layers, cost=cost)
GIVEN = {
    "slice_stages": lambda edges: SLICE(edges=edges, transfer_s=lambda *_: 1.0),
    "price_stages": lambda edges: PRICE(edges=edges, transfer_s=lambda *_: 1.0),
    "cluster_operators": lambda values: cluster_operators((1.0, 2.0, 3.0), values, 2),
    "split_graph": lambda values: split_graph(NODES, values, 2, 2, transfer_s=lambda _: 1.0),
}

COUNTS = {
    "layers": lambda v: slice_stages(v, (2, 2), 4, cost),
    "hosts": lambda v: slice_stages(4, (v, 2), 4, cost),
    "microbatches": lambda v: slice_stages(4, (2, 2), v, cost),
    "some microbatches": lambda v: slice_stages(4, (2, 2), (4, v), cost),
    "stages": lambda v: SLICE(n_stages=v),
    "some stages": lambda v: SLICE(n_stages=(1, v)),
    "in flight": lambda v: SLICE(in_flight=lambda *_: v),
    "in flight of given": lambda v: PRICE(in_flight=lambda *_: v),
    "in flight of a graph": lambda v: SPLIT(n_stages=2, n_microbatches=2, in_flight=lambda *_: v),
    "given microbatches": lambda v: price_stages(SPANS, v, cost),
    "given submesh": lambda v: price_stages([(0, 3, (1, v))], 4, cost),
    "equal stages": lambda v: EQUAL(4, (2, 2), 4, n_stages=v),
    "equal layers": lambda v: EQUAL(v, (2, 2), 4, n_stages=1),
    "clustered layers": lambda v: cluster_operators((1.0, 2.0), [], v),
    "operators": lambda v: at_marks((), v),
    "marks": lambda v: at_marks((v,), 9),
    "groups": lambda v: repeated_blocks("abab", n_groups=v),
    "graph stages": lambda v: SPLIT(n_stages=v, n_microbatches=2),
    "graph microbatches": lambda v: SPLIT(n_stages=2, n_microbatches=v),
    "shapes": lambda v: submesh_shapes(2, v),
    "devices": HostKind,
    "parts": lambda v: HostKind(4, parts=(v, 4)),
    "hosts of a kind": lambda v: Places(((HostKind(4), v),)),
    "pipeline microbatches": lambda v: pipeline_time_s((1.0,), v),
    "columns": lambda v: PLAN().draw(width=v),
    "simulated microbatches": lambda v: simulate((1.0,), (1,), v),
    "simulated in flight": lambda v: simulate((1.0,), (v,), 1),
}
AMOUNTS = {
    "time": lambda v: StageCost(v, 0, 0),
    "fixed": lambda v: StageCost(0.0, v, 0),
    "activation": lambda v: StageCost(0.0, 0, v),
    "once": lambda v: StageCost(0.0, 0, 0, once_s=v),
    "temporary": lambda v: StageCost(0.0, 0, 0, temporary_bytes=v),
    "memory": lambda v: SLICE(v),
    "memory of given": lambda v: PRICE(v),
    "memory of a graph": lambda v: SPLIT(n_stages=2, n_microbatches=2, memory_bytes=v),
    "gap": lambda v: SLICE(gap=v),
    "boundary": lambda v: SLICE(boundary_s=lambda _: v),
    "boundary of given": lambda v: PRICE(boundary_s=lambda _: v),
    "transfer": lambda v: SLICE(edges=[Boundary(0, 4, (1,))], transfer_s=lambda *_: v),
    "FLOPs": lambda v: cluster_operators((1.0, v), [], 1),
    "FLOPs to compare": lambda v: PLAN(flops=(1.0, 1.0, 1.0, v)),
    "pipeline": lambda v: pipeline_time_s((1.0, v), 2),
    "once in a pipeline": lambda v: pipeline_time_s((1.0,), 2, (v,)),
    "simulated": lambda v: simulate((1.0, v), (2, 1), 2),
}


@pytest.mark.parametrize("name", COUNTS)
def test_rejects_what_is_no_number_of_things(name):
    for value in NO_COUNTS:
        with pytest.raises(InvalidInputError, match="; got "):
            COUNTS[name](value)


@pytest.mark.parametrize("name", AMOUNTS)
def test_rejects_what_is_no_time_or_size(name):
    for value in NO_AMOUNTS:
        with pytest.raises(InvalidInputError, match="; got"):
            AMOUNTS[name](value)


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize(
    "name", ["layers", "hosts", "shapes", "devices", "hosts of a kind", "columns"]
)
def test_rejects_what_no_machine_could_look_at(name, value):
    with pytest.raises(InvalidInputError, match="; got"):
        COUNTS[name](value)


@pytest.mark.parametrize("value", HUGE)
def test_takes_any_number_of_microbatches_and_bytes(value):
    assert slice_stages(4, (2, 2), value, cost).time_s > value
    assert with_value(GIVEN["price_stages"], n_bytes=value).time_s > 0
    assert price_stages([(0, value, (1, 2))], 4, cost).stages[0].last == value


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize(
    "wrong",
    [
        *({"n_bytes": each} for each in (-1, 1.5, math.nan, math.inf, None, "4")),
        *({"producer": each} for each in (-1, 0.5, math.nan, None, "0", 2**40)),
        *({"consumers": (each,)} for each in (-1, 0, 1.5, math.nan, None, "1", 2**40)),
    ],
    ids=str,
)
def test_rejects_what_is_no_value(given, wrong):
    with pytest.raises(InvalidInputError, match=r"read it after one made it; got \w+\[0\]=B"):
        with_value(GIVEN[given], **wrong)


def test_rejects_no_stages_to_choose_from():
    with pytest.raises(InvalidInputError, match=r"n_stages=\(\)"):
        SLICE(n_stages=())


def test_rejects_a_pipeline_of_nothing():
    with pytest.raises(InvalidInputError, match=r"got stage_s=\(\)"):
        pipeline_time_s((), 2)
    with pytest.raises(InvalidInputError, match=r"once_s=\(1.0, 2.0\)"):
        pipeline_time_s((1.0,), 2, (1.0, 2.0))


def test_rejects_steps_below_none():
    with pytest.raises(InvalidInputError, match="got steps=-1"):
        assign_devices(((1, 2), (1, 2)), (2, 2), steps=-1)


def test_numbers_of_numpy_are_numbers():
    def priced(first, last, submesh):
        return StageCost(np.float32(1.5), np.int64(1), np.int32(1), option=np.int64(3))

    plan = plan_stages(np.int64(4), (2, 2), np.int64(4), priced, np.int64(100), n_stages=np.int8(2))
    assert plan == plan_stages(4, (2, 2), 4, priced, 100, n_stages=2)
    assert StagePlan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_of_a_cost_function_says_what_was_asked_for(processes):
    cost = range  # which every process can import, and which takes no submesh
    with pytest.raises(TypeError, match="cannot be interpreted as an integer") as raised:
        slice_stages(4, (1, 2), 4, cost, processes=processes)
    (note,) = raised.value.__notes__
    assert re.search(r"asked for layers \d to \d on a submesh of 1 x \d devices", note)
    with pytest.raises(TypeError) as raised:
        price_stages([(0, 3, (1, 2))], 4, cost)
    assert "layers 0 to 3 on a submesh of 1 x 2 devices" in raised.value.__notes__[0]
