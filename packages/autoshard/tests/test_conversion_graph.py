"""Conversions are shortest paths over single collectives."""

import math

import numpy as np
import pytest
from autoshard.graph.graph_fields import Value
from autoshard.space import conversion
from autoshard.space.conversion import Converter, spec_set
from autoshard.space.conversion_graph import SpecGraph, fewest_steps, shortest
from autoshard.testing import meshes
from costmodel import Cluster, Device, Link, reshard_time, step_time
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Partial, ReshardError, Spec, reshard_whole_axes

CLUSTER = Cluster.uniform(
    "toy",
    n_hosts=4,
    devices_per_host=2,
    device=Device("toy", (("float32", 1e12),), 2**30, 1e11, 1e-6),
    intra_host=Link(1e-6, 100e9),
    inter_host=Link(2e-5, 5e9),
)
SHAPES = [(), (12,), (8, 12), (4, 6, 8), (2, 3)]
MIXED = (Partial(0, "max"), Partial(1), Partial(2))


@st.composite
def conversions(draw):
    """A value on a mesh of 8 devices or fewer, and two of its specs."""
    mesh = draw(meshes())
    value = Value("v", draw(st.sampled_from(SHAPES)), "float32")
    graph = SpecGraph(value.shape, mesh.shape)
    src, dst = (draw(st.sampled_from(graph.specs)) for _ in range(2))
    return mesh, value, src, dst


def converter(mesh):
    return Converter(mesh, CLUSTER.links(mesh))


def price(mesh, value, src, dst):
    return converter(mesh).seconds(value, spec_set((src,)), spec_set((dst,)))[0, 0]


@given(conversions())
def test_no_plan_of_shardspec_is_faster(conversion):
    mesh, value, src, dst = conversion
    layouts = [Layout(value.shape, mesh, spec) for spec in (src, dst)]
    try:
        plan = reshard_whole_axes(*layouts)
    except ReshardError:
        assert price(mesh, value, src, dst) == math.inf
    else:
        theirs = reshard_time(plan, value.itemsize, CLUSTER.links(mesh))
        assert price(mesh, value, src, dst) <= theirs * (1 + 1e-9)


@given(conversions())
def test_the_steps_of_a_conversion_take_as_long_as_it_is_priced(conversion):
    mesh, value, src, dst = conversion
    seconds = price(mesh, value, src, dst)
    if seconds == math.inf:
        with pytest.raises(ReshardError, match="none brings"):
            converter(mesh).steps(value, src, dst)
        return
    steps = converter(mesh).steps(value, src, dst)
    links = CLUSTER.links(mesh)
    assert sum(step_time(step, value.itemsize, links) for step in steps) == pytest.approx(seconds)
    specs = [src, *(step.dst.spec for step in steps)]
    assert specs[1:] == list(converter(mesh).path(value, src, dst))
    assert specs[-1] == dst
    assert [step.src.spec for step in steps] == specs[:-1]


def test_every_move_is_one_step_of_shardspec():
    mesh = Mesh((2, 2, 2), ("x", "y", "z"))
    graph = SpecGraph((4, 8), mesh.shape, Spec(((), ()), MIXED))
    weights = graph.weights(4 * 8 * 4, CLUSTER.links(mesh))
    for source, target in zip(*np.nonzero(np.isfinite(weights)), strict=True):
        ends = [Layout((4, 8), mesh, graph.specs[node]) for node in (source, target)]
        (step,) = reshard_whole_axes(*ends).steps
        assert step_time(step, 4, CLUSTER.links(mesh)) == weights[source, target]


def test_a_sum_over_hosts_and_devices_is_scattered_inside_first():
    mesh = Mesh((4, 2), ("host", "device"))
    value = Value("v", (4096, 4096), "float32")
    src, dst = Spec(((), ()), (Partial(0), Partial(1))), Spec(((0,), (1,)))
    first = converter(mesh).steps(value, src, dst)[0]
    assert (first.kind, first.axes) == ("reduce_scatter", (1,))


def test_of_several_kinds_the_last_is_reduced_first():
    mesh = Mesh((2, 2, 2), ("x", "y", "z"))
    value = Value("v", (8,), "float32")
    specs = converter(mesh).path(value, Spec(((),), MIXED), Spec(((),)))
    kinds = [{partial.kind for partial in spec.partial} for spec in specs]
    assert {"sum"} not in kinds
    assert kinds[-1] == set()


def test_an_uneven_spec_is_reached_from_itself_only():
    mesh = Mesh((4,), ("x",))
    value = Value("v", (6,), "float32")
    uneven, whole = Spec(((0,),)), Spec(((),))
    assert price(mesh, value, uneven, uneven) == 0.0
    assert price(mesh, value, whole, uneven) == math.inf
    assert price(mesh, value, uneven, whole) == math.inf


@given(st.sampled_from([(3,), (2, 3), (4,)]), st.tuples(st.integers(4, 9), st.integers(4, 9)))
def test_an_uneven_move_takes_as_long_as_that_of_the_padded_tensor(sizes, shape):
    mesh = Mesh(sizes, tuple("xyz"[: len(sizes)]))
    graph = SpecGraph(shape, mesh.shape, uneven=True)
    links = CLUSTER.links(mesh)
    seconds = graph.weights(4.0 * math.prod(shape), links)
    for src, dst in zip(*np.nonzero(np.isfinite(seconds)), strict=True):
        specs = graph.specs[src], graph.specs[dst]
        lengths = [math.lcm(*(mesh.axis_size(s.sharding_of(d)) for s in specs)) for d in range(2)]
        padded = [-(-size // n) * n for size, n in zip(shape, lengths, strict=True)]
        plan = reshard_whole_axes(*(Layout(tuple(padded), mesh, spec) for spec in specs))
        assert seconds[src, dst] >= reshard_time(plan, 4, links) * (1 - 1e-9)


def test_specs_that_come_later_are_priced_too():
    mesh = Mesh((2,), ("x",))
    value = Value("v", (8,), "float32")
    convert, whole = converter(mesh), spec_set((Spec(((),)),))
    first = convert.seconds(value, spec_set((Spec(((),), (Partial(0),)),)), whole)
    later = convert.seconds(value, spec_set((Spec(((),), (Partial(0, "max"),)),)), whole)
    assert first == later


def test_of_equally_fast_paths_the_one_with_fewest_steps_is_taken():
    weights = np.full((4, 4), np.inf)
    weights[0, 1] = weights[1, 2] = weights[2, 3] = 1.0
    weights[0, 2] = 2.0
    lengths = shortest(weights)
    assert fewest_steps(weights, lengths, 0, 3) == [2, 3]
    assert fewest_steps(weights, lengths, 3, 3) == []


@st.composite
def questions(draw, mesh):
    """A value, and two specs of it, of which the first may have partial results of any kinds."""
    shape = draw(st.sampled_from([(12,), (8, 12), (4, 8)]))
    kinds = draw(st.lists(st.sampled_from(["sum", "max", "min"]), max_size=mesh.ndim))
    partial = tuple(Partial(axis, kind) for axis, kind in enumerate(kinds))
    graph = SpecGraph(shape, mesh.shape, Spec(((),) * len(shape), partial))
    src, dst = (draw(st.sampled_from(graph.specs)) for _ in range(2))
    return Value("v", shape, draw(st.sampled_from(["float32", "bfloat16"]))), src, dst


@given(st.data(), st.sampled_from([(2,), (4, 2), (2, 2, 2)]))
def test_what_was_asked_before_changes_no_price_and_no_path(data, sizes):
    mesh = Mesh(sizes, tuple("xyz"[: len(sizes)]))
    earlier = data.draw(st.lists(questions(mesh), max_size=4))
    value, src, dst = data.draw(questions(mesh))
    used, fresh = converter(mesh), converter(mesh)
    for before, start, goal in earlier:
        used.seconds(before, spec_set((start,)), spec_set((goal, start)))
    ends = spec_set((src,)), spec_set((dst,))
    assert used.seconds(value, *ends) == fresh.seconds(value, *ends)
    if math.isfinite(fresh.seconds(value, *ends)[0, 0]):
        assert used.path(value, src, dst) == fresh.path(value, src, dst)


def test_a_converter_that_forgot_its_tables_finds_the_same(monkeypatch):
    mesh = Mesh((2, 2), ("x", "y"))
    value, every = Value("v", (8, 12), "float32"), SpecGraph((8, 12), mesh.shape).specs
    used, ends = converter(mesh), [spec_set(tuple(every))] * 2
    before = used.seconds(value, *ends)
    used.forget_many()
    assert used.seconds(value, *ends) is before
    monkeypatch.setattr(conversion, "MOST_ENTRIES", 10)
    used.forget_many()
    again = used.seconds(value, *ends)
    assert again is not before
    np.testing.assert_array_equal(again, before)


def test_tables_of_prices_cannot_be_written_to():
    mesh = Mesh((2,), ("x",))
    seconds = converter(mesh).seconds(Value("v", (8,), "float32"), *[spec_set((Spec(((),)),))] * 2)
    with pytest.raises(ValueError, match="read-only"):
        seconds[0, 0] = 1.0


def test_of_equal_ways_the_same_is_taken_whatever_was_asked_before():
    mesh = Mesh((2, 2, 2), ("x", "y", "z"))
    value, smallest = Value("v", (8, 24), "float32"), (Partial(0, "min"),)
    src, dst = Spec(((), ()), smallest), Spec(((1, 0), (2,)))
    used, fresh = converter(mesh), converter(mesh)
    split = spec_set((Spec(((), (1, 2)), smallest),))
    used.seconds(Value("v", (40, 8), "float32"), split, split)
    assert used.path(value, src, dst) == fresh.path(value, src, dst)
