"""Strided shards: conversions to and from plain ones, and strides worth trying (Rhino 4.3.3)."""

import itertools
import math
import re

import numpy as np
import pytest
from autoshard import (
    GraphBuilder,
    Options,
    Sharding,
    collectives,
    enumerate_strategies,
    prepare,
    reshape,
    shard,
)
from autoshard.graph.graph_fields import Value
from autoshard.picture import axis_roles
from autoshard.space.conversion import Converter, spec_set, steps_of
from autoshard.space.conversion_graph import SpecGraph
from autoshard.space.strategy_tables import table_of
from autoshard.testing import (
    cases,
    check_results,
    check_sharding,
    check_strategy,
    meshes,
    toy_cluster,
)
from costmodel import Cluster, Device, Link, reshard_time, step_time
from hypothesis import example, given, settings
from hypothesis import strategies as st
from shardspec import (
    WHOLE_AXES,
    Layout,
    Mesh,
    Partial,
    ReshardError,
    ReshardPlan,
    Spec,
    Split,
    assemble,
    reshard,
    simulate,
)
from shardspec import shard as cut

CLUSTER = Cluster.uniform(
    "toy",
    n_hosts=4,
    devices_per_host=2,
    device=Device("toy", (("float32", 1e12),), 2**30, 1e11, 1e-6),
    intra_host=Link(1e-6, 100e9),
    inter_host=Link(2e-5, 5e9),
)
PAIR = Mesh((2,), ("x",))
SQUARE = Mesh((2, 2), ("x", "y"))
SHAPES = [(48,), (8, 48), (16, 24, 2), (3, 16)]


@st.composite
def strided_specs(draw, shape, mesh):
    """A spec of whole axes with splits before some of them; some of the others are partial."""
    dims = [[] for _ in shape]
    left = list(shape)
    partial = []
    axes = [axis for axis, n in enumerate(mesh.shape) if n > 1]
    for axis in draw(st.permutations(axes)):
        n = mesh.shape[axis]
        where = draw(st.sampled_from(["free", "partial", *range(len(shape))]))
        if where == "partial":
            partial.append(Partial(axis))
        elif where != "free":
            splits = [k for k in (1, 2, 3, 4) if left[where] % (k * n) == 0]
            if splits:
                split = draw(st.sampled_from(splits))
                dims[where] += [Split(split), axis]
                left[where] //= split * n
    return Spec(tuple(map(tuple, dims)), tuple(partial))


@st.composite
def conversions(draw):
    """A value on a mesh of 8 devices or fewer, and two of its specs, strided or not."""
    mesh = draw(meshes())
    value = Value("v", draw(st.sampled_from(SHAPES)), "float32")
    plain = SpecGraph(value.shape, mesh.shape).specs
    strided = strided_specs(value.shape, mesh)
    return mesh, value, draw(strided), draw(strided | st.sampled_from(plain)), draw(st.booleans())


def price(of, value, src, dst):
    return of.seconds(value, spec_set((src,)), spec_set((dst,)))[0, 0]


@given(conversions())
def test_the_steps_of_a_conversion_take_as_long_as_it_is_priced_and_do_it(conversion):
    mesh, value, src, dst, turned = conversion
    if turned:
        src, dst = dst, src
    links = CLUSTER.links(mesh)
    found = Converter(mesh, links)
    seconds = price(found, value, src, dst)
    if seconds == math.inf:
        assert not set(dst.partial) <= set(src.partial)
        with pytest.raises(ReshardError, match="none brings"):
            found.path(value, src, dst)
        return
    path = (src, *found.path(value, src, dst))
    assert path[-1] == dst
    total = 0.0
    shards = None
    for before, after in itertools.pairwise(path):
        (step,) = steps_of(value.shape, mesh, before, after)
        took = step_time(step, value.itemsize, links)
        assert price(found, value, before, after) == pytest.approx(took)
        assert found.path(value, before, after) == (after,)
        total += took
        ends = tuple(Layout(value.shape, mesh, spec) for spec in (before, after))
        plan = ReshardPlan(*ends, (step,))
        assert (step.src, step.dst) == ends
        if not src.is_partial:
            array = np.arange(math.prod(value.shape)).reshape(value.shape)
            shards = cut(plan.src, array) if shards is None else shards
            shards = simulate(plan, shards)
            np.testing.assert_array_equal(assemble(plan.dst, shards), array)
    assert total == pytest.approx(seconds)


@example(
    (SQUARE, Value("v", (16, 24, 2), "float32"), Spec.parse("S01RR"), Spec.parse("S[4]0RS1"), False)
)
@given(conversions())
def test_no_collective_of_shardspec_is_faster(conversion):
    mesh, value, src, dst, turned = conversion
    if turned:
        src, dst = dst, src
    if src.is_plain and dst.is_plain:
        return  # for these only the steps of `jax.lax` count
    try:
        plan = reshard(*(Layout(value.shape, mesh, spec) for spec in (src, dst)))
    except ReshardError:
        return
    if len(plan.steps) == 1 and plan.steps[0].kind in WHOLE_AXES:
        (step,) = plan.steps
        ours = steps_of(value.shape, mesh, src, dst)
        assert [(one.kind, one.axes) for one in ours] == [(step.kind, step.axes)]
        links = CLUSTER.links(mesh)
        theirs = reshard_time(plan, value.itemsize, links)
        assert price(Converter(mesh, links), value, src, dst) <= theirs * (1 + 1e-9)


@settings(max_examples=settings().max_examples // 4)
@given(conversions())
def test_what_was_asked_before_changes_no_price(conversion):
    mesh, value, src, dst, _ = conversion
    links = CLUSTER.links(mesh)
    used, fresh = Converter(mesh, links), Converter(mesh, links)
    price(used, value, dst, src)
    price(used, value, Spec(src.dims, ()), dst)
    assert price(used, value, src, dst) == pytest.approx(price(fresh, value, src, dst))


def qkv(plain_reader=False):
    """Rhino 4.1: one product computes queries, keys and values, and a reshape reads them."""
    p = GraphBuilder()
    x, w, b = p.input("x", 64, 1024), p.parameter("w", 1024, 3 * 16 * 64), p.parameter("b", 3072)
    merged = p.apply("add", p.dot(x, w), b, name="merged")
    parts = p.reshape(merged, 64, 3, 16, 64, name="parts")
    scores = p.einsum("bthd,bthe->bhde", parts, parts, name="scores")
    p.output(p.apply("softmax", scores, dims=(3,), name="y"))
    if plain_reader:
        p.output(p.einsum("bo,oc->bc", merged, p.parameter("v", 3072, 1024), name="z"))
    return p.build()


def test_the_strides_of_a_reshape_reach_its_neighbours():
    graph = qkv()
    assert graph.pieces["merged"] == ((), (3, 48))
    assert graph.pieces["w"] == ((), (3, 48))
    assert graph.pieces["b"] == ((3, 48),)
    assert graph.pieces["x"] == ((), ())
    assert graph.pieces["parts"] == ((), (), (), ())


@pytest.mark.parametrize("mesh", [Mesh((4,), ("x",)), Mesh((2, 4), ("x", "y"))], ids=["4", "2x4"])
def test_a_strided_shard_of_queries_keys_and_values_avoids_communication(mesh):
    """Every device has the same heads of all three, so nothing is sent."""
    cluster = Cluster.preset("two-hosts")
    plain, strided = (
        shard(qkv(), mesh, cluster, strided=allowed, compare=False) for allowed in (False, True)
    )
    check_sharding(strided)
    assert sum(plain.communication_s) > 0.0
    assert sum(strided.communication_s) == 0.0
    assert strided.objective_s < plain.objective_s
    assert strided.lower_bound_s == pytest.approx(strided.objective_s)
    assert str(dict(strided.input_specs)["w"]).startswith("RS[3]")
    assert Sharding.from_json(strided.to_json()) == strided
    picture_of = axis_roles(strided)
    assert picture_of[-1][0] == "splits dim 1"


def test_a_reader_that_needs_a_plain_spec_forces_a_conversion_that_is_named():
    mesh, cluster = Mesh((4,), ("x",)), Cluster.preset("two-hosts")
    prepared = prepare(qkv(plain_reader=True), mesh, cluster, Options(strided=True))
    strided, plain = Spec.parse("RS[3]0"), Spec.parse("RS0")
    graph = prepared.graph
    index = graph.producers["z"][0]
    reader = next(
        strategy
        for strategy in table_of(
            graph, graph.operators[index], mesh.shape, prepared.options
        ).strategies
        if strategy.operand_specs == (plain, Spec.parse("S0R"))
    )
    found = prepared.solve(pin={"merged": strided, "z": reader}, compare=False)
    check_sharding(found)
    (sent,) = [one for one in collectives(graph, found) if one.value == "merged"]
    assert (sent.step.kind, sent.step.src.spec, sent.step.dst.spec) == ("exchange", strided, plain)
    took = step_time(sent.step, 4, cluster.links(mesh))
    explanation = found.explain("z")
    assert explanation.taken.before_s == pytest.approx(took)
    assert [(c.src, c.dst) for c in explanation.taken.conversions if c.value == "merged"] == [
        (strided, plain)
    ]
    assert re.search(r"  merged +exchange +RS\[3\]0 -> RS0 ", str(found))
    assert "Its operands take an exchange of merged, RS[3]0 -> RS0 (" in str(explanation)
    free = prepared.solve(pin={"merged": strided}, compare=False)
    assert free.objective_s < found.objective_s  # the reader takes strided shards, too


def test_what_is_computed_from_strided_shards_is_right():
    p = GraphBuilder(dtype="int64")
    x, w = p.input("x", 4, 4, dtype="int64"), p.parameter("w", 4, 24, dtype="int64")
    parts = p.reshape(p.dot(x, w, name="merged"), 4, 3, 4, 2, name="parts")
    p.output(p.reshape(p.apply("neg", parts), 4, 24, name="y"), whole=True)
    graph = p.build()
    found = prepare(graph, SQUARE, CLUSTER, Options(strided=True)).solve(
        pin={"merged": Spec.parse("S0S[3]1"), "w": Spec.parse("RS01")}, compare=False
    )
    check_sharding(found)
    assert any("[3]" in str(c.dst) for c in found.conversions)

    def run(operator, operands, shapes):
        match operator.kind:
            case "dot_general":
                return [operands[0] @ operands[1]]
            case "neg":
                return [-operands[0]]
            case _:
                return [operands[0].reshape(shapes[0])]

    check_results(found, run)


@given(cases(), st.sampled_from([PAIR, SQUARE]), st.data())
def test_every_strided_strategy_computes_the_right_result(case, mesh, data):
    strategies = enumerate_strategies(case.rule, mesh.shape, strided=True)
    assert set(enumerate_strategies(case.rule, mesh.shape)) <= set(strategies)
    strategy = data.draw(st.sampled_from(strategies))
    seed = data.draw(st.integers(0, 99))
    check_strategy(case.rule, case.run, mesh, strategy, operands=case.operands, seed=seed)


def test_a_minor_factor_is_split_by_strides():
    split = {str(s): s for s in enumerate_strategies(reshape((2, 4), (8,)), (2,), strided=True)}
    assert str(split["f1->0"].operand_specs[0]) == "RS0"
    assert str(split["f1->0"].result_specs[0]) == "S[2]0"


def test_strided_strategies_never_hurt():
    p = GraphBuilder()
    merged = p.reshape(p.input("x", 3, 8), 24)
    p.output(p.apply("tanh", p.reshape(merged, 3, 8)))
    graph = p.build()
    plain, strided = (
        shard(graph, PAIR, toy_cluster(), strided=allowed, compare=False)
        for allowed in (False, True)
    )
    check_sharding(strided)
    assert strided.objective_s < plain.objective_s  # the columns stay split all the way
