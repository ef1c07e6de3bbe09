"""Explanations: the prices of candidates are exact, and the texts equal golden files."""

import math

import pytest
from autoshard import GraphBuilder, GraphError, baseline_inputs, shard
from autoshard.answer.costs import entries
from autoshard.answer.explain import explain
from autoshard.answer.memory import peak_bytes
from autoshard.answer.what_if import candidates, replaced
from autoshard.programs import gpt_step, mlp_step
from costmodel import Cluster
from hypothesis import given, settings
from hypothesis import strategies as st
from shardspec import Mesh, Spec

TWO_HOSTS = Cluster.preset("two-hosts")


@pytest.fixture(scope="module")
def gpt():
    graph = gpt_step(batch=4, length=4, width=8, heads=2, vocabulary=16, n_layers=1)
    return shard(graph, Mesh((2, 2), ("x", "y"), (0, 1, 4, 5)), TWO_HOSTS, compare=False)


@pytest.fixture(scope="module")
def uneven():
    graph = mlp_step(batch=6, width=1001, hidden=2003)
    return shard(graph, Mesh((2, 4), ("x", "y")), TWO_HOSTS, uneven=True, compare=False)


def price(sharding):
    return math.fsum(entry.seconds for entry in entries(sharding))


def check(sharding, place, data):
    """Check that the price of a candidate is that of its sharding, summed over all entries."""
    found = candidates(sharding, place)
    here = (
        sharding.strategies[place] if isinstance(place, int) else dict(sharding.input_specs)[place]
    )
    (taken,) = (one for one in found if one.how == here)
    possible = [one for one in found if math.isfinite(one.seconds)]
    other = data.draw(st.sampled_from(possible))
    more = price(replaced(sharding, place, other)) - sharding.objective_s
    assert other.seconds - taken.seconds == pytest.approx(more, abs=1e-12, rel=1e-9)
    assert sharding.objective_s + more >= sharding.lower_bound_s * (1 - 1e-9)


@settings(max_examples=settings().max_examples // 3)
@given(st.data())
def test_a_candidate_takes_what_its_sharding_takes_and_none_beats_the_bound(mlp, gpt, uneven, data):
    sharding = data.draw(st.sampled_from([mlp, gpt, uneven]))
    places = [*range(len(sharding.graph.operators)), *sharding.graph.inputs]
    check(sharding, data.draw(st.sampled_from(places)), data)


def test_every_strategy_is_a_candidate_once(mlp):
    for index in range(len(mlp.graph.operators)):
        found = [one.how for one in candidates(mlp, index)]
        assert mlp.strategies[index] in found
        assert len(set(found)) == len(found)


@pytest.mark.parametrize("name", ["einsum_2", "w2"])
def test_an_explanation_looks_like_this(mlp, name, check_golden):
    check_golden(f"explain_{name}.txt", str(explain(mlp, name)))


def test_others_are_sorted_by_what_they_take(mlp):
    explanation = mlp.explain("einsum_14")
    seconds = [other.seconds for other in explanation.others]
    assert seconds == sorted(seconds)
    assert explanation.taken.how == mlp.strategies[14]


def test_a_limit_that_forbids_the_faster_way_is_the_reason(check_golden):
    layers = GraphBuilder()
    x = layers.input("x", 4096, 64)
    for layer in range(4):
        x = layers.dot(x, layers.parameter(f"w{layer}", 64, 64))
    layers.output(x)
    mesh = Mesh((4,), ("x",))
    free = shard(layers.build(), mesh, TWO_HOSTS, compare=False)
    limit = int(free.peak_bytes) - 1
    tight = shard(layers.build(), mesh, TWO_HOSTS, memory_bytes=limit, compare=False)
    check_golden("explain_limit.txt", str(tight.explain("w0")))
    (whole,) = (one for one in tight.explain("w0").others if one.how == Spec.replicated(2))
    assert whole.seconds < tight.explain("w0").taken.seconds
    assert peak_bytes(replaced(tight, "w0", whole)) > limit


def test_what_has_no_other_way_says_so():
    graph = gpt_step(batch=3, length=5, width=7, heads=1, vocabulary=11, n_layers=1)
    sharding = shard(graph, Mesh((4,), ("x",)), TWO_HOSTS, compare=False)
    explanation = sharding.explain("ids")
    assert explanation.taken.how == Spec.replicated(2)
    assert str(explanation).endswith("There is no other way.")


def test_a_name_that_is_not_there_is_an_error_with_one_that_is(mlp):
    with pytest.raises(GraphError, match="is called 'einsum2'; did you mean 'einsum_2'"):
        mlp.explain("einsum2")
    with pytest.raises(GraphError, match=r"is called '\?'; its inputs are x, w1, w2"):
        mlp.explain("?")
    with pytest.raises(
        GraphError, match="explain takes the name of an operator or value; got None"
    ):
        mlp.explain(None)


def test_a_spec_that_is_pinned_against_a_baseline_is_explained():
    graph = mlp_step(batch=16, width=8, hidden=16)
    pinned = Spec.parse("RS0")
    mesh = Mesh((2, 2), ("x", "y"))
    found = shard(graph, mesh, TWO_HOSTS, restrict="megatron", pin={"w1": pinned}, compare=False)
    assert pinned not in baseline_inputs(graph, mesh, "megatron")["w1"]
    assert found.explain("w1").taken.how == pinned
