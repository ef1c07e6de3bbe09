"""A sharding is accepted only if its graph, cluster and specs give the numbers that it states."""

import json
import math
from dataclasses import replace
from typing import get_args

import pytest
from autoshard import GraphError, RecordError, Sharding, VerificationError, shard
from autoshard.programs import gpt_step, mlp_step
from autoshard.testing import graphs
from costmodel import (
    Cluster,
    CollectiveKind,
    Rounds,
    fastest,
    known_algorithms,
    register_algorithm,
)
from costmodel.time import algorithm_table
from hypothesis import given, settings
from hypothesis import strategies as st
from shardspec import Mesh, Spec

CLUSTER = Cluster.preset("two-hosts")
SLOW = replace(CLUSTER.device, name="slow", launch_s=3e-6, memory_bandwidth_bytes_per_s=1e9)
UNLIKE = replace(CLUSTER, hosts=(CLUSTER.hosts[0], replace(CLUSTER.hosts[1], device=SLOW)))
MESH = Mesh((2, 2), ("x", "y"))
STEP = mlp_step(batch=32, width=64, hidden=256, microbatches=4)
FOUND = shard(STEP, MESH, CLUSTER, in_flight=2)
GPT = gpt_step(batch=4, length=4, width=8, heads=2, vocabulary=16, n_layers=1)
ZERO = shard(GPT, MESH, CLUSTER, restrict="zero")
SAID = ["compute_s", "communication_s", "objective_s", "peak_bytes", "activation_bytes"]


@given(
    graphs(),
    st.sampled_from([(2,), (2, 2)]),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([None, 2**20]),
    st.sampled_from(["equal hosts", "slow host", "both hosts"]),
)
@settings(max_examples=settings().max_examples // 2)
def test_whatever_shard_finds_is_what_it_says(
    graph, shape, in_flight, uneven, overlap, bucket, where
):
    n = math.prod(shape)
    first, cluster = (0, CLUSTER) if where == "equal hosts" else (4, UNLIKE)
    ids = tuple(range(first, first + n)) if where != "both hosts" else (0, 4, 1, 5)[:n]
    mesh = Mesh(shape, ("x", "y")[: len(shape)], ids)
    found = shard(
        graph,
        mesh,
        cluster,
        in_flight=in_flight,
        uneven=uneven,
        overlap=overlap,
        bucket_bytes=bucket,
        compare=False,
    )
    found.verify()
    assert Sharding.from_json(found.to_json()) == found


def test_a_mesh_is_priced_by_the_slowest_of_its_devices():
    fast, slow, both = (
        shard(STEP, Mesh((4,), ("x",), ids), UNLIKE, restrict="data_parallel", compare=False)
        for ids in ((0, 1, 2, 3), (4, 5, 6, 7), (0, 1, 4, 5))
    )
    assert sum(fast.compute_s) < sum(slow.compute_s)
    *_, optimizer_s = slow.compute_s
    assert both.compute_s[-1] == optimizer_s


def altered(sharding, name, factor):
    """The same sharding with one of its numbers changed."""
    said = getattr(sharding, name)
    if isinstance(said, tuple):
        place = max(range(len(said)), key=said.__getitem__)
        changed = tuple(s * factor if i == place else s for i, s in enumerate(said))
        return replace(sharding, **{name: changed})
    return replace(sharding, **{name: type(said)(said * factor)})


@pytest.mark.parametrize("factor", [0.5, 1.0 - 1e-6, 1.001, 2.0])
@pytest.mark.parametrize("name", SAID)
def test_a_number_that_was_altered_is_refused(name, factor):
    wrong = altered(FOUND, name, factor)
    with pytest.raises(VerificationError, match=rf"{name}.* is .*; solve again"):
        wrong.verify()
    with pytest.raises(RecordError, match=rf"{name}.* is .*; solve again"):
        Sharding.from_json(wrong.to_json())


def test_prices_of_algorithms_that_are_not_registered_are_not_believed(monkeypatch):
    group = CLUSTER.links(MESH).group((0, 1))
    kinds = [kind for kind in get_args(CollectiveKind) if kind not in ("permute", "point_to_point")]
    monkeypatch.setattr(algorithm_table, "_known", known_algorithms())
    for kind in kinds:
        share = 1.0 if kind == "broadcast" else 0.0
        register_algorithm(
            kind,
            "at once",
            lambda n, share=share: Rounds(1 * (n > 1), max(share * (n > 1), 1 - 1 / n)),
        )
    assert fastest("all_reduce", 1.0, group).algorithm == "at once"
    other = shard(STEP, MESH, CLUSTER, in_flight=2)
    other.verify()
    assert other.objective_s < FOUND.objective_s
    with pytest.raises(VerificationError, match=r"solve again, or register .* costmodel\.register"):
        FOUND.verify()
    monkeypatch.undo()
    FOUND.verify()
    with pytest.raises(RecordError, match=r"solve again, or register .* costmodel\.register_alg"):
        Sharding.from_json(other.to_json())


def test_the_objective_of_a_text_is_not_believed():
    document = json.loads(FOUND.to_json())
    document["sharding"]["objective_s"] /= 2
    with pytest.raises(RecordError, match="the objective of a sharding is the time of its phases"):
        Sharding.from_json(json.dumps(document))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lower_bound_s": 1.0}, "no sharding takes less than the lower bound"),
        ({"hidden_s": (1.0, 0.0, 0.0)}, "hidden_s of .* 'forward' is 1.0, and they give 0.0"),
        ({"bucketed_s": (0.0, 1.0, 0.0)}, "bucketed_s of .* 'backward' is 1.0"),
        ({"hidden_s": (0.0,)}, "has 3 hidden_s for this graph; got 1"),
        (
            {"options": replace(FOUND.options, memory_bytes=FOUND.peak_bytes - 1)},
            "a sharding keeps its limit of .* bytes; a device holds",
        ),
        (
            {"cluster": Cluster.preset("h100-sxm")},
            "of a phase is that of its operators and conversions",
        ),
    ],
    ids=["bound", "hidden", "bucketed", "phases", "limit", "cluster"],
)
def test_what_does_not_add_up_is_refused(changes, message):
    with pytest.raises(VerificationError, match=message):
        replace(FOUND, **changes).verify()


def test_the_limit_may_be_just_met():
    replace(FOUND, options=replace(FOUND.options, memory_bytes=FOUND.peak_bytes)).verify()


@given(st.data())
def test_no_conversion_can_be_left_out_or_made_twice(data):
    """Also if its seconds are subtracted, since a reader does not find the spec that it needs."""
    found = ZERO
    place = data.draw(st.integers(0, len(found.conversions) - 1))
    before, one, after = (
        found.conversions[:place],
        found.conversions[place],
        found.conversions[place + 1 :],
    )
    with pytest.raises(VerificationError, match=r"no conversion makes|is not avail|nothing reads"):
        replace(found, conversions=before + after).verify()
    with pytest.raises(VerificationError, match="which is already available"):
        replace(found, conversions=(*before, one, one, *after)).verify()


def test_an_output_leaves_as_it_is_asked():
    outputs = list(FOUND.output_specs)
    place = next(i for i, o in enumerate(STEP.outputs) if o.alias is not None)
    dims = len(STEP.value(STEP.outputs[place].value).shape)
    other = Spec(((0, 1), *((),) * (dims - 1)))
    outputs[place] = other if outputs[place] != other else Spec.replicated(dims)
    with pytest.raises(VerificationError, match=r"is stored back as|no conversion makes"):
        replace(FOUND, output_specs=tuple(outputs)).verify()


def test_the_memory_of_another_account_is_left_to_it():
    """The price is checked all the same."""
    other = replace(FOUND, peak_bytes=1, memory_by="frontends")
    other.verify()
    assert Sharding.from_json(other.to_json()) == other
    with pytest.raises(VerificationError, match="the objective of a sharding"):
        replace(other, objective_s=0.0).verify()


def test_a_text_that_does_not_say_whose_memory_it_has_is_read():
    document = json.loads(FOUND.to_json())
    del document["sharding"]["memory_by"]
    assert Sharding.from_json(json.dumps(document)) == replace(FOUND, memory_by="")


def test_a_graph_that_is_not_well_formed_is_refused_as_one():
    graph = replace(STEP, inputs=STEP.inputs[1:])
    with pytest.raises(GraphError):
        replace(FOUND, graph=graph).verify()
