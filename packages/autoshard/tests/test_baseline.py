"""Baselines store inputs as they prescribe, and the search is never worse than they are."""

import math
from dataclasses import replace

import pytest
from autoshard import BaselineError, InfeasibleError, Sharding, baseline, baseline_inputs, shard
from autoshard.programs import StepBuilder, deep_mlp_step, mlp_step
from autoshard.shard import Prepared, _with_alternatives
from autoshard.space import copy_sets
from autoshard.space.baseline import BASELINES
from costmodel import Cluster, Device, Link
from hypothesis import given, settings
from hypothesis import strategies as st
from shardspec import Mesh

FLAT = Mesh((4,), ("x",))
SQUARE = Mesh((2, 2), ("x", "y"))


def cluster(latency_s=1e-6, flops=1e10):
    device = Device("d", (("float32", flops),), 2**30, 1e10, 1e-6)
    link = Link(latency_s, 1e9)
    return Cluster.uniform("c", 1, 4, device, link, link)


def stored(graph, mesh, name):
    found = baseline_inputs(graph, mesh, name)
    return {n: str(specs[0]) for n, specs in found.items() if len(specs) == 1}


def test_data_parallelism_splits_the_batch_only():
    specs = stored(mlp_step(batch=64, width=16, hidden=32), SQUARE, "data_parallel")
    assert specs.pop("x") == "S01R"
    assert set(specs.values()) == {"RR"}


def test_zero2_splits_optimizer_state_and_zero_parameters_too():
    graph = mlp_step(batch=64, width=16, hidden=32)
    for name, split in (("zero2", ("w1_m", "w1_v")), ("zero", ("w1", "w1_m", "w1_v"))):
        specs = stored(graph, SQUARE, name)
        assert specs["x"] == "S01R"
        assert {n for n in specs if n.startswith("w1") and specs[n] != "RR"} == set(split)
        assert all(specs[n].count("0") == specs[n].count("1") == 1 for n in split)


def test_megatron_splits_the_batch_over_the_first_and_parameters_over_the_last_axis():
    found = baseline_inputs(mlp_step(batch=64, width=16, hidden=32), SQUARE, "megatron")
    assert [str(spec) for spec in found["x"]] == ["S0R"]
    assert {str(spec) for spec in found["w1"]} == {"RR", "S1R", "RS1"}


def test_the_largest_dim_is_split_as_far_as_it_is_even():
    p = StepBuilder()
    p.input("wide", 4, 12)
    p.input("odd", 3, 2)
    p.input("tie", 8, 8, role="parameter")
    p.input("scalar")
    specs = stored(p.graph(), Mesh((2, 4), ("x", "y")), "largest_dim")
    assert specs == {"wide": "RS1", "odd": "RR", "tie": "S01R", "scalar": "()"}


@pytest.mark.parametrize("name", ["data_parallel", "zero2", "zero"])
def test_a_batch_that_cannot_be_split_is_refused(name):
    graph = mlp_step(batch=6, width=16, hidden=32)
    with pytest.raises(BaselineError, match="splits batch inputs evenly along dim 0 over 4"):
        baseline(graph, FLAT, cluster(), name)


def test_only_known_baselines_have_inputs():
    with pytest.raises(BaselineError, match="a baseline is one of"):
        baseline_inputs(mlp_step(batch=4, width=4, hidden=4), FLAT, "magic")


@settings(max_examples=settings().max_examples // 6)
@given(
    st.sampled_from(BASELINES),
    st.sampled_from([FLAT, SQUARE]),
    st.sampled_from([4, 4096]),
    st.sampled_from([(16, 4), (4, 64, 4)]),
    st.sampled_from([1e-8, 1e-5]),
)
def test_no_baseline_is_faster_than_what_is_found(name, mesh, batch, widths, latency_s):
    graph, prices = deep_mlp_step(batch=batch, widths=widths), cluster(latency_s)
    found = shard(graph, mesh, prices)
    other = baseline(graph, mesh, prices, name)
    assert found.objective_s <= other.objective_s * (1 + 1e-9)
    (kept,) = (one for one in found.alternatives if one.name == name)
    assert kept.objective_s == pytest.approx(other.objective_s)


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_that_fits_is_not_faster_under_a_limit_either(name):
    graph, prices = deep_mlp_step(batch=64, widths=(16, 64)), cluster()
    other = baseline(graph, FLAT, prices, name)
    found = shard(graph, FLAT, prices, compare=False, memory_bytes=int(other.peak_bytes))
    assert found.objective_s <= other.objective_s * (1 + 1e-9)


def test_a_baseline_that_does_not_fit_is_kept_with_its_reason():
    graph, prices = deep_mlp_step(batch=64, widths=(16, 64)), cluster()
    whole = baseline(graph, FLAT, prices, "data_parallel")
    found = shard(graph, FLAT, prices, memory_bytes=int(whole.peak_bytes) - 1)
    (kept,) = (one for one in found.alternatives if one.name == "data_parallel")
    assert kept.objective_s is None
    assert kept.reason


def test_where_a_baseline_is_best_the_bound_is_that_of_the_search():
    """A baseline's bound does not hold for shardings that store the inputs in another way."""
    graph, prices = deep_mlp_step(batch=64, widths=(16, 64)), cluster()
    zero = baseline(graph, FLAT, prices, "zero")
    assert zero.lower_bound_s == pytest.approx(zero.objective_s)
    for bound, said in ((zero.objective_s / 2, "none takes less than"), (-math.inf, "nothing is")):
        poor = replace(zero, objective_s=2 * zero.objective_s, lower_bound_s=bound)
        best = _with_alternatives({"search": poor, "zero": zero})
        assert best.objective_s == zero.objective_s
        assert best.lower_bound_s == bound
        assert [(other.name, other.reason) for other in best.alternatives] == [
            ("search", "100.0% slower")
        ]
        assert said in str(best)


def test_a_sharding_of_which_nothing_is_proved_says_so():
    graph, prices = deep_mlp_step(batch=64, widths=(16, 64)), cluster()
    found = replace(shard(graph, FLAT, prices, compare=False), lower_bound_s=-math.inf)
    assert "; nothing is proved" in str(found)


def test_a_bound_of_the_model_only_is_called_so(monkeypatch):
    """Three operators read a value that has more sets of copies than a relay may hold."""
    graph, prices = mlp_step(batch=16, width=32, hidden=64), cluster()
    every = shard(graph, SQUARE, prices, compare=False)
    assert every.is_bound_of_all
    assert "few copies" not in str(every)
    monkeypatch.setattr(copy_sets, "COPY_SETS", 1)
    other = cluster(latency_s=3.7e-6)  # new links: the tables of the other ones are cached
    some = shard(graph, SQUARE, other, compare=False)
    assert not some.is_bound_of_all
    assert "of those with few copies of a value" in str(some)
    assert Sharding.from_json(some.to_json()) == some


def test_a_baseline_is_taken_where_the_search_finds_nothing_that_fits(monkeypatch):
    graph = mlp_step(batch=16, width=32, hidden=64)
    limit = baseline(graph, FLAT, cluster(), "zero").peak_bytes
    search = Prepared._best

    def blind(self, options, pins, how):
        if options.restrict is None:
            raise InfeasibleError("found nothing", float(limit))
        return search(self, options, pins, how)

    monkeypatch.setattr(Prepared, "_best", blind)
    found = shard(graph, FLAT, cluster(), memory_bytes=limit)
    assert found.peak_bytes <= limit
    assert found.lower_bound_s == 0.0  # the baseline's bound does not hold for all shardings
    assert {"search": "found nothing"}.items() <= {
        one.name: one.reason for one in found.alternatives
    }.items()
    with pytest.raises(InfeasibleError, match="found nothing"):
        shard(graph, FLAT, cluster(), memory_bytes=limit // 50)
