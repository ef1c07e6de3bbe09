"""The problem that is built says the truth: judged by trying every sharding of tiny graphs."""

import itertools
import math
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest
from autoshard import (
    GraphBuilder,
    GraphError,
    InfeasibleError,
    OptionError,
    Options,
    PinError,
    Value,
    baseline,
    collectives,
    enumerate_strategies,
    held,
    prepare,
    rematerialize,
    reshape,
    shard,
    stored_specs,
)
from autoshard.conversion import converter_of, spec_set
from autoshard.convert import convert
from autoshard.largest import fewest_sharded
from autoshard.lifetime import saved_activations
from autoshard.programs import mlp_step
from autoshard.relay import copy_sets, making, serving
from autoshard.testing import cases, check_sharding, check_strategy, graphs, least_seconds
from autoshard.testing.sharding import cheapest_tree
from costmodel import Cluster, Device, Link
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from shardspec import Mesh, Partial, Spec

PAIR, SQUARE = Mesh((2,), ("x",)), Mesh((2, 2), ("x", "y"))


def cluster(latency_s=1e-6, bandwidth=1e9, flops=1e10):
    """Two hosts of four devices whose links and arithmetic matter alike for tiny tensors."""
    rates = tuple((dtype, flops) for dtype in ("float32", "bfloat16", "int32"))
    device = Device("d", rates, 2**30, 1e10, 0.0)
    link = Link(latency_s, bandwidth)
    return Cluster.uniform("c", 2, 4, device, link, Link(10 * latency_s, bandwidth / 10))


def n_shardings(graph, mesh):
    shapes = [graph.value(name).shape for name in graph.inputs]
    inputs = [len(stored_specs(shape, mesh.shape, uneven=True)) for shape in shapes]
    ways = [len(enumerate_strategies(op.rule, mesh.shape, uneven=True)) for op in graph.operators]
    return math.prod(inputs + ways)


@st.composite
def tiny_graphs(draw, mesh, most):
    """Few enough shardings to try them all."""
    graph = draw(graphs(max_operators=4, updates=draw(st.booleans())))
    assume(n_shardings(graph, mesh) <= most)
    return graph


@settings(max_examples=settings().max_examples // 2)
@given(tiny_graphs(PAIR, 5_000), st.sampled_from([0.0, 1e-6]), st.sampled_from([1e6, 1e9]))
def test_the_optimum_is_that_of_trying_everything(graph, latency_s, bandwidth):
    prices = cluster(latency_s, bandwidth)
    found = shard(graph, PAIR, prices, compare=False)
    check_sharding(found)
    assert found.solution.gap < 1e-9
    assert found.objective_s == pytest.approx(
        least_seconds(graph, PAIR, prices), rel=1e-9, abs=1e-15
    )


@st.composite
def shared_products(draw, n_readers):
    """A product that is read several times, by what takes partial sums as they are or does not."""
    p = GraphBuilder()
    n, k = draw(st.sampled_from([(2, 2), (2, 64), (3, 64), (4, 3)]))
    product = p.dot(p.input("x", n, k), p.parameter("y", k, n))
    kinds = st.sampled_from(["tanh", "neg", "add", "mul", "transpose"])
    for kind in draw(st.lists(kinds, min_size=n_readers, max_size=n_readers)):
        match kind:
            case "add" | "mul":
                made = p.apply(kind, product, product)
            case "transpose":
                made = p.transpose(product, 1, 0)
            case _:
                made = p.apply(kind, product)
        p.output(made, whole=draw(st.booleans()))
    return p.build()


@settings(max_examples=settings().max_examples // 5)
@given(st.integers(2, 4).flatmap(shared_products), st.sampled_from([1e-9, 1e-6]))
def test_readers_share_conversions_as_well_as_can_be(graph, latency_s):
    assume(n_shardings(graph, PAIR) <= 8_000)
    prices = cluster(latency_s, bandwidth=1e8)
    found = shard(graph, PAIR, prices, compare=False)
    check_sharding(found)
    assert found.solution.gap < 1e-9
    assert found.objective_s == pytest.approx(least_seconds(graph, PAIR, prices), rel=1e-9)


def all_specs(shape, mesh):
    """Every stored spec, and the same with sums over axes that it leaves."""
    found = list(stored_specs(shape, mesh.shape))
    for spec in stored_specs(shape, mesh.shape):
        free = [axis for axis in range(mesh.ndim) if axis not in spec.axes]
        found += [Spec(spec.dims, tuple(map(Partial, some))) for some in subsets(free)]
    return found


def subsets(axes):
    counts = range(1, len(axes) + 1)
    return [some for count in counts for some in itertools.combinations(axes, count)]


@settings(max_examples=2 * settings().max_examples)
@given(st.data(), st.sampled_from([PAIR, SQUARE]), st.sampled_from([1e-9, 1e-6]))
def test_a_relay_serves_its_readers_as_cheaply_as_any_tree(data, mesh, latency_s):
    """Where all sets are listed; else it is an upper bound."""
    shape, prices = (4, 8), cluster(latency_s, bandwidth=1e8)
    specs = all_specs(shape, mesh)
    made = data.draw(st.sampled_from(specs))
    asked = data.draw(st.lists(st.sampled_from(specs), min_size=1, max_size=4))
    value, converter = Value("v", shape, "float32"), converter_of(mesh.shape, prices.links(mesh))
    every = spec_set(tuple(specs))
    seconds = converter.seconds(value, every, every)
    sets, is_exact = copy_sets(specs, seconds, len(asked))
    columns = [specs.index(spec) for spec in set(asked)]
    served = making(sets, seconds)[specs.index(made)] + serving(sets, seconds)[:, columns].sum(
        axis=1
    )
    tree = cheapest_tree(shape, 4, mesh, prices, made, frozenset(asked) - {made})
    assert is_exact or mesh is SQUARE
    if is_exact:
        assert served.min() == pytest.approx(tree, rel=1e-9)
    else:
        assert served.min() >= tree * (1 - 1e-9)
    if math.isfinite(tree):
        best = sets[int(served.argmin())]
        _, converted = convert(converter, value, made, asked, [specs[i] for i in best])
        assert tree * (1 - 1e-9) <= converted <= served.min() * (1 + 1e-9)


def test_three_readers_share_what_one_of_them_does_not_need():
    """Two readers of a sum share the reduced copy, and the third takes it partial."""
    mesh, prices = Mesh((4,), ("x",)), cluster()
    specs = [Spec.parse("RR+P0"), Spec.parse("RR"), Spec.parse("S0R"), Spec.parse("RS0")]
    value, converter = Value("v", (64, 64), "float32"), converter_of(mesh.shape, prices.links(mesh))
    every = spec_set(tuple(specs))
    seconds = converter.seconds(value, every, every)
    sets, _ = copy_sets(specs, seconds, 3)
    assert (0, 1) in sets
    pair = sets.index((0, 1))
    assert making(sets, seconds)[0, pair] == seconds[0, 1]
    assert serving(sets, seconds)[pair, :2].tolist() == [0.0, 0.0]


def optimum(prepared, **options):
    """What a sharding costs; infinite if there is none."""
    try:
        found = prepared.solve(compare=False, **options)
    except InfeasibleError:
        return math.inf
    check_sharding(found)
    return found.objective_s


@settings(max_examples=settings().max_examples // 8)
@given(tiny_graphs(PAIR, 10**6), st.sampled_from([1, 2]), st.floats(0.3, 1.0))
def test_more_memory_never_costs_more(graph, in_flight, part):
    prepared = prepare(graph, PAIR, cluster(), Options(in_flight=in_flight))
    free = prepared.solve(compare=False)
    limits = [int(free.peak_bytes * part), int(free.peak_bytes * (1 + part) / 2), free.peak_bytes]
    costs = [optimum(prepared, memory_bytes=limit) for limit in limits]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == free.objective_s


def late_reader():
    """Only the last of those who may read a copy takes it; the problem holds it for all."""
    p = GraphBuilder()
    x = p.input("x", 2)
    first = p.apply("runs whole", x)
    p.apply("tanh", x)
    p.output(p.apply("runs whole", first))
    return p.build()


@settings(max_examples=settings().max_examples // 8)
@given(tiny_graphs(PAIR, 10**6), st.floats(0.0, 1.0))
@example(late_reader(), 0.0)
def test_the_limit_that_an_error_names_would_do_and_less_would_not(graph, part):
    prepared = prepare(graph, PAIR, cluster())
    with pytest.raises(InfeasibleError) as caught:
        prepared.solve(memory_bytes=0)
    smallest = math.ceil(caught.value.smallest_usage)
    found = prepared.solve(memory_bytes=smallest)
    check_sharding(found)
    assert found.peak_bytes == smallest
    for less in (smallest - 1, int(part * (smallest - 1))):
        with pytest.raises(InfeasibleError) as again:
            prepared.solve(memory_bytes=less)
        assert again.value.smallest_usage == smallest


@settings(max_examples=settings().max_examples // 4)
@given(tiny_graphs(PAIR, 100))
def test_no_sharding_takes_less_than_the_smallest_limit(graph):
    """Of those that convert fastest; where three read a value, a copy may count too long."""
    reads = Counter([*itertools.chain(*(op.inputs for op in graph.operators))])
    reads.update(output.value for output in graph.outputs)
    assume(max(reads.values()) <= 2)
    prepared = prepare(graph, PAIR, cluster())
    with pytest.raises(InfeasibleError) as caught:
        prepared.solve(memory_bytes=0)
    names = (*graph.inputs, *(op.name for op in graph.operators))
    stored = (stored_specs(graph.value(name).shape, PAIR.shape) for name in graph.inputs)
    ways = (enumerate_strategies(op.rule, PAIR.shape) for op in graph.operators)
    peaks = []
    for choice in itertools.product(*stored, *ways):
        with suppress(InfeasibleError):  # a constant would have to be sent
            found = prepared.solve(pin=dict(zip(names, choice, strict=True)), compare=False)
            peaks.append(found.peak_bytes)
    assert caught.value.smallest_usage == min(peaks)


@settings(max_examples=settings().max_examples // 4)
@given(tiny_graphs(PAIR, 10**6), st.data())
def test_pinning_never_helps_and_is_kept(graph, data):
    prepared = prepare(graph, PAIR, cluster())
    free = prepared.solve(compare=False)
    name = data.draw(st.sampled_from(graph.inputs))
    spec = data.draw(st.sampled_from(stored_specs(graph.value(name).shape, PAIR.shape)))
    index = data.draw(st.integers(0, len(graph.operators) - 1))
    ways = enumerate_strategies(graph.operators[index].rule, PAIR.shape)
    pins = {name: spec, graph.operators[index].name: data.draw(st.sampled_from(ways))}
    assume(len(pins) == 2)
    try:
        pinned = prepared.solve(pin=pins, compare=False)
    except InfeasibleError:  # a constant would have to be sent
        return
    check_sharding(pinned)
    assert dict(pinned.input_specs)[name] == spec
    assert pinned.strategies[index] == pins[graph.operators[index].name]
    assert pinned.objective_s >= free.objective_s * (1 - 1e-9)
    again = prepared.solve(
        pin={op.name: s for op, s in zip(graph.operators, free.strategies, strict=True)}
    )
    assert again.objective_s <= free.objective_s * (1 + 1e-9)


def test_pins_that_cannot_be_are_refused():
    p = GraphBuilder()
    p.output(p.apply("tanh", p.input("x", 4, 3)))
    prepared = prepare(p.build(), PAIR, cluster())
    with pytest.raises(PinError, match="'nobody', which is none"):
        prepared.solve(pin={"nobody": Spec.parse("RR")})
    with pytest.raises(PinError, match=r"'x' on a mesh of shape \(2,\) cannot be RS0"):
        prepared.solve(pin={"x": Spec.parse("RS0")})
    with pytest.raises(PinError, match="pinned to an operator; got 'x'"):
        prepared.solve(pin={"x": enumerate_strategies(p.build().operators[0].rule, (2,))[0]})

    with pytest.raises(PinError, match="reads text"):
        prepared.solve(pin={"x": "RR"})


def test_options_that_mean_nothing_are_refused():
    with pytest.raises(OptionError, match="in flight; got in_flight=0"):
        Options(in_flight=0)
    with pytest.raises(OptionError, match="got memory_bytes=-1"):
        Options(memory_bytes=-1)
    with pytest.raises(OptionError, match="a memory rule is one of"):
        Options(memory_rule="magic")
    with pytest.raises(OptionError, match=r"below 1; got overlap=1\.0"):
        Options(overlap=1.0)
    with pytest.raises(OptionError, match="got bucket_bytes=0"):
        Options(bucket_bytes=0)


@settings(max_examples=settings().max_examples // 6)
@given(graphs(max_operators=4))
def test_a_nested_mesh_is_never_worse(graph):
    """All that an axis of 4 can do, the two axes of 2 that it is split into can."""
    flat = Mesh((4,), ("x",))
    coarse, fine = (
        shard(graph, mesh, cluster(), compare=False) for mesh in (flat, flat.split("x", (2, 2)))
    )
    check_sharding(fine)
    assert fine.objective_s <= coarse.objective_s * (1 + 1e-9)


def test_a_gathered_parameter_counts_while_it_is_read():
    p = GraphBuilder()
    y = p.dot(p.input("x", 1024, 64), p.parameter("w", 64, 64))
    p.output(y)
    batch, whole = (Spec.parse(text) for text in ("S0R", "RR"))
    prepared = prepare(p.build(), PAIR, cluster())
    found = prepared.solve(pin={"x": batch, "w": batch, y: batch}, compare=False)
    copies = [one for one in held(found) if one.kind == "copy"]
    assert [(one.value, one.spec, one.n_bytes) for one in copies] == [("w", whole, 4 * 64 * 64)]
    assert found.peak_bytes == 4 * (1024 * 64 + 64 * 64 // 2 + 64 * 64)
    with pytest.raises(InfeasibleError, match=r"when it holds at least x \(131072 bytes\)"):
        prepared.solve(
            pin={"x": batch, "w": batch, y: batch}, memory_bytes=found.peak_bytes - 1, compare=False
        )


TRIPLE = Mesh((3,), ("x",))


@given(cases(), st.sampled_from([TRIPLE, Mesh((4,), ("x",)), Mesh((2, 3), ("x", "y"))]), st.data())
def test_every_uneven_strategy_computes_the_right_result(case, mesh, data):
    strategies = enumerate_strategies(case.rule, mesh.shape, uneven=True)
    assert set(enumerate_strategies(case.rule, mesh.shape)) <= set(strategies)
    strategy = data.draw(st.sampled_from(strategies))
    seed = data.draw(st.integers(0, 99))
    check_strategy(case.rule, case.run, mesh, strategy, operands=case.operands, seed=seed)


def test_an_uneven_dim_costs_as_if_it_were_padded():
    costs = []
    mesh = Mesh((4,), ("x",))
    for n in (10, 12):
        p = GraphBuilder()
        p.output(p.apply("tanh", p.input("x", n, 64), name="y"), whole=True)
        pins = {"x": Spec.parse("S0R"), "y": Spec.parse("S0R")}
        options = Options(uneven=True)
        found = prepare(p.build(), mesh, cluster(), options).solve(pin=pins, compare=False)
        check_sharding(found)
        costs.append((found.compute_s[0] / n, found.communication_s, found.peak_bytes))
        assert [c.step.kind for c in collectives(found.graph, found)] == ["all_gather"]
    (ten, *rest), (twelve, *padded) = costs
    assert ten == pytest.approx(twelve * 12 / 10)
    assert rest[0] == padded[0]
    assert rest[1] == padded[1] - 2 * 64 * 4  # the gathered copy is not padded


@settings(max_examples=settings().max_examples // 3)
@given(tiny_graphs(TRIPLE, 3_000), st.sampled_from([0.0, 1e-6]), st.sampled_from([1e6, 1e9]))
def test_uneven_strategies_never_hurt_and_the_optimum_is_found(graph, latency_s, bandwidth):
    prices = cluster(latency_s, bandwidth)
    found = shard(graph, TRIPLE, prices, uneven=True, compare=False)
    check_sharding(found)
    even = shard(graph, TRIPLE, prices, compare=False)
    assert found.objective_s <= even.objective_s * (1 + 1e-9)
    least = least_seconds(graph, TRIPLE, prices, uneven=True)
    assert found.objective_s == pytest.approx(least, rel=1e-9, abs=1e-15)


def test_the_fewest_largest_parameters_are_sharded_and_a_constraint_is_never_worse():
    graph = mlp_step(batch=64, width=32, hidden=64)
    prepared = prepare(graph, SQUARE, cluster(1e-5, 1e8))
    free = prepared.solve(compare=False)
    n_sharded = []
    for tenths in (10, 9, 7):
        limit = free.peak_bytes * tenths // 10
        found = prepared.solve(memory_rule="largest", memory_bytes=limit, compare=False)
        check_sharding(found)
        assert found.options.memory_rule == "largest"
        best = prepared.solve(memory_bytes=limit, compare=False)
        check_sharding(best)
        assert free.objective_s <= best.objective_s <= found.objective_s * (1 + 1e-9)
        assert found.lower_bound_s <= best.objective_s * (1 + 1e-9)
        n_sharded.append(sum(bool(spec.axes) for _, spec in found.input_specs))
    assert n_sharded[0] == 0 < n_sharded[1] < n_sharded[2] <= 6
    with pytest.raises(InfeasibleError, match="with all 6 of them sharded the peak is"):
        prepared.solve(memory_rule="largest", memory_bytes=1, compare=False)


def test_the_rule_of_the_largest_takes_the_smallest_number_that_fits():
    """By a solver whose peak falls by one with each parameter that is forced."""
    graph = mlp_step(batch=64, width=32, hidden=64)
    free = shard(graph, SQUARE, cluster(), compare=False)
    asked = []

    def solve(forced):
        asked.append(len(forced))
        bound = 1.0 + len(forced) / 10
        return replace(free, peak_bytes=100 - len(forced), objective_s=2.0, lower_bound_s=bound)

    for k in range(7):
        found = fewest_sharded(solve, graph, SQUARE.shape, memory_bytes=100 - k)
        assert found.peak_bytes == 100 - k
        assert found.lower_bound_s == 1.0  # of all shardings, not of those with so many forced
    by_size = sorted((n for n in graph.inputs if n != "x"), key=lambda n: -graph.value(n).n_bytes)
    assert len(by_size) == 6
    assert max(asked) == 6


def test_what_is_computed_again_is_not_held_and_costs_its_operator():
    graph = mlp_step(batch=256, width=16, hidden=64, microbatches=4)
    lean = rematerialize(graph, ["gelu_1"])
    assert set(saved_activations(graph)) - set(saved_activations(lean)) == {"gelu_1"}
    assert len(lean.operators) == len(graph.operators) + 1
    fat, thin = (
        baseline(one, PAIR, cluster(), "data_parallel", in_flight=4) for one in (graph, lean)
    )
    check_sharding(thin)
    part = 256 * 64 * 4 // 2
    assert thin.activation_bytes == fat.activation_bytes - part
    assert thin.peak_bytes <= fat.peak_bytes - 4 * part + part
    assert thin.compute_s[1] > fat.compute_s[1]


def test_only_saved_activations_are_computed_again():
    graph = mlp_step(batch=8, width=4, hidden=16)
    with pytest.raises(GraphError, match=r"got 'x', where these are einsum_0, gelu_1, "):
        rematerialize(graph, ["x"])


def test_a_chain_that_is_computed_again_starts_from_what_is_saved():
    graph = mlp_step(batch=8, width=4, hidden=16)
    lean = rematerialize(graph, ["einsum_0", "gelu_1"])
    assert not {"einsum_0", "gelu_1"} & set(saved_activations(lean))
    again = [op for op in lean.operators if op.name.startswith("backward@")]
    assert [(op.name, op.inputs) for op in again] == [
        ("backward@einsum_0", ("x", "w1")),
        ("backward@gelu_1", ("backward@einsum_0",)),
    ]


@settings(max_examples=settings().max_examples // 6)
@given(tiny_graphs(PAIR, 10**6), st.sampled_from([0.25, 0.5, 0.9]))
def test_overlap_hides_no_more_than_compute_and_never_costs(graph, overlap):
    prices = cluster(bandwidth=1e8)
    plain, hiding = (
        shard(graph, PAIR, prices, compare=False, overlap=part) for part in (0.0, overlap)
    )
    check_sharding(hiding)
    for hidden, computed in zip(hiding.hidden_s, hiding.compute_s, strict=True):
        assert 0.0 <= hidden <= computed
    assert hiding.lower_bound_s <= plain.objective_s * (1 + 1e-9)
    assert plain.hidden_s == (0.0,) * len(graph.phases)


def test_a_bucket_pays_one_latency():
    """Eight equal gradients are reduced in apply, one after the other or together."""
    prices = cluster(latency_s=1e-3)
    p = GraphBuilder()
    x = p.input("x", 64, 8)
    p.phase("backward")
    names = [f"w{i}" for i in range(8)]
    for name in names:
        p.parameter(name, 8, 8)
    gradients = [p.einsum("bi,bj->ij", x, x) for _ in names]
    p.phase("apply")
    for name, gradient in zip(names, gradients, strict=True):
        p.output(p.add(name, gradient), alias=name)
    graph = p.build()
    pins = {"x": Spec.parse("S0R")} | {name: Spec.parse("RR") for name in names}
    pins |= {gradient: Spec.parse("RR+P0") for gradient in gradients}
    one = 8 * 8 * 4
    saved = []
    for size in (one - 1, one, 4 * one, 8 * one):
        options = Options(bucket_bytes=size)
        found = prepare(graph, PAIR, prices, options).solve(pin=pins, compare=False)
        sent = [c.step.kind for c in collectives(graph, found)]
        assert sent == ["all_reduce"] * 8
        saved.append(found.bucketed_s[-1])
    latency = prices.links(PAIR)[0].latency_s
    assert saved[0] == saved[1] == 0.0
    each = saved[3] - saved[2]  # two buckets become one: one latency less
    assert each > 0.9 * latency
    assert saved[2] == pytest.approx(6 * each)
    assert saved[3] == pytest.approx(7 * each)


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
        shard(graph, PAIR, cluster(), strided=allowed, compare=False) for allowed in (False, True)
    )
    check_sharding(strided)
    assert strided.objective_s < plain.objective_s  # the columns stay split all the way
