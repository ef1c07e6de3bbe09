"""Tables, and the cost entries that they show."""

import pytest
from autoshard import shard
from autoshard.answer.costs import ConversionCost, OperatorCost, entries
from autoshard.answer.table import repetition
from autoshard.programs import StepBuilder, gpt_step, mlp_step
from costmodel import Cluster
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Mesh

TWO_HOSTS = Cluster.preset("two-hosts")


def gpt():
    return gpt_step(batch=2, length=4, width=8, heads=2, vocabulary=16, n_layers=1)


@pytest.mark.parametrize("graph", [mlp_step(batch=8, width=64, hidden=256, microbatches=2), gpt()])
@pytest.mark.parametrize("shape", [(4,), (2, 2)], ids=str)
def test_entries_are_all_that_the_objective_is_made_of(graph, shape):
    mesh = Mesh(shape, ("x", "y")[: len(shape)])
    sharding = shard(graph, mesh, TWO_HOSTS, compare=False)
    found = entries(sharding)
    works = [entry for entry in found if isinstance(entry, OperatorCost)]
    moves = [entry for entry in found if isinstance(entry, ConversionCost)]
    assert [work.operator for work in works] == list(graph.operators)
    assert sorted(map(str, (move.conversion for move in moves))) == sorted(
        map(str, sharding.conversions)
    )
    assert sum(work.seconds for work in works) == pytest.approx(sum(sharding.compute_s))
    assert sum(move.seconds for move in moves) == pytest.approx(sum(sharding.communication_s))


def test_a_conversion_stands_before_what_needs_it(mlp):
    there = dict(mlp.input_specs)
    specs = {(name, phase): {spec} for name, spec in there.items() for phase in range(3)}
    for entry in entries(mlp):
        if isinstance(entry, ConversionCost):
            of = entry.conversion
            assert of.src in specs[of.value, of.phase]
            specs[of.value, of.phase].add(of.dst)
            continue
        for name, spec in zip(entry.operator.inputs, entry.strategy.operand_specs, strict=True):
            assert spec in specs[name, entry.phase]
        for name, spec in zip(entry.operator.outputs, entry.strategy.result_specs, strict=True):
            specs |= {(name, phase): {spec} for phase in range(3)}


def test_a_table_looks_like_this(mlp, check_golden):
    check_golden("table.txt", str(mlp))


def test_what_is_hidden_and_saved_is_said_apart(mlp):
    where = (mlp.graph, mlp.mesh, mlp.cluster)
    found = shard(*where, compare=False, overlap=0.5, bucket_bytes=2**20)
    assert sum(found.hidden_s) > 0.0
    assert " are hidden" in str(found)
    assert ("(buckets save " in str(found)) == (sum(found.bucketed_s) > 0.0)
    assert "hidden" not in str(mlp)


def test_layers_alike_are_shown_once():
    long, short = (
        str(shard(of_layers(n), Mesh((4,), ("x",)), TWO_HOSTS, compare=False)).splitlines()
        for n in (12, 6)
    )
    assert len(long) == len(short)
    assert sum(line.startswith("...") for line in long) > 2


def of_layers(n_layers):
    program = StepBuilder()
    x = program.input("x", 16, 16)
    for layer in range(n_layers):
        weight = program.parameter(f"w{layer}", 16, 16)
        x = program.unary("gelu", program.einsum("ik,kj->ij", x, weight))
    return program.finish(program.reduce(program.reduce(x, 1), 0))


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12), st.data())
def test_no_other_repetition_saves_more(items, data):
    start = data.draw(st.integers(0, len(items) - 1))
    period, times = repetition(items, start)
    assert items[start : start + period * times] == items[start : start + period] * times
    for other in range(1, len(items)):
        count = 1
        while (
            items[start + count * other : start + (count + 1) * other]
            == items[start : start + other]
        ):
            count += 1
        assert other * (count - 1) <= period * (times - 1)
