"""Copies that readers share are as cheap as any tree of conversions."""

import itertools
import math

import pytest
from autoshard import GraphBuilder, Value, shard, stored_specs
from autoshard.space.conversion import converter_of, spec_set
from autoshard.space.conversions import convert
from autoshard.space.copy_sets import copy_sets, making, serving
from autoshard.testing import check_sharding, count_shardings, least_seconds, toy_cluster
from autoshard.testing.sharding import cheapest_tree
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from shardspec import Mesh, Partial, Spec

PAIR = Mesh((2,), ("x",))
SQUARE = Mesh((2, 2), ("x", "y"))


@st.composite
def shared_products(draw, n_readers):
    """A product that several operators read, some of which take partial sums."""
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
    assume(count_shardings(graph, PAIR) <= 8_000)
    prices = toy_cluster(latency_s, bandwidth_bytes_per_s=1e8)
    found = shard(graph, PAIR, prices, compare=False)
    check_sharding(found)
    assert found.solution.gap < 1e-9
    assert found.objective_s == pytest.approx(least_seconds(graph, PAIR, prices), rel=1e-9)


def all_specs(shape, mesh):
    """Every stored spec, with partial sums over any of the axes that it does not use."""
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
    """Only if all sets are listed; otherwise the cost is an upper bound."""
    shape, prices = (4, 8), toy_cluster(latency_s, bandwidth_bytes_per_s=1e8)
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
    """Two readers of a partial sum share the reduced copy; the third reads the partial sum."""
    mesh, prices = Mesh((4,), ("x",)), toy_cluster()
    specs = [Spec.parse("RR+P0"), Spec.parse("RR"), Spec.parse("S0R"), Spec.parse("RS0")]
    value, converter = Value("v", (64, 64), "float32"), converter_of(mesh.shape, prices.links(mesh))
    every = spec_set(tuple(specs))
    seconds = converter.seconds(value, every, every)
    sets, _ = copy_sets(specs, seconds, 3)
    assert (0, 1) in sets
    pair = sets.index((0, 1))
    assert making(sets, seconds)[0, pair] == seconds[0, 1]
    assert serving(sets, seconds)[pair, :2].tolist() == [0.0, 0.0]
