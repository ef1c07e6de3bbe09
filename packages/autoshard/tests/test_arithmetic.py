"""Operators run at the rate of the dtype that they multiply, on the device of the plan."""

import itertools

import pytest
from autoshard import (
    Graph,
    Operator,
    Output,
    Phase,
    Rule,
    RuleError,
    Value,
    arithmetic_dtype,
    einsum,
    prepare,
    shard,
    whole,
)
from autoshard.programs import mlp_step
from costmodel import Cluster, Device, Link
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Mesh

PRODUCT = einsum("ik,kj->ij", (64, 64), (64, 64))
RATES = (("float32", 1e12), ("bfloat16", 16e12), ("int8", 32e12))
MESH = Mesh((2,), ("x",))


def cluster(speed=1.0, bandwidth_bytes_per_s=1e14):
    """A cluster whose devices are `speed` times as fast; the links are always the same."""
    rates = tuple((name, rate * speed) for name, rate in RATES)
    device = Device("toy", rates, 2**30, bandwidth_bytes_per_s * speed, 0.0)
    links = (Link(1e-6, 1e10), Link(1e-5, 1e9))
    return Cluster.uniform(
        "toy",
        n_hosts=1,
        devices_per_host=2,
        device=device,
        intra_host=links[0],
        inter_host=links[1],
    )


def one_operator(rule, dtypes, flops):
    """A graph of one operator, whose results are outputs."""
    shapes = (*rule.operand_shapes, *rule.result_shapes)
    names = tuple(f"v{index}" for index in range(len(shapes)))
    n = len(rule.operands)
    values = tuple(itertools.starmap(Value, zip(names, shapes, dtypes, strict=True)))
    operator = Operator("op", "op", names[:n], names[n:], rule, flops)
    outputs = tuple(map(Output, names[n:]))
    return Graph((Phase("step"),), values, (operator,), names[:n], outputs)


def flash_gradient():
    """A rule on gradient, queries, keys, values, result and normalisers, as `frontends` has it."""
    q, rows = "bhtd", "bht"
    words = [q, q, "bhsd", "bhsd", q, rows]
    text = "".join(f"({','.join(word)})" for word in words)
    text += "->" + "".join(f"({','.join(word)})" for word in (q, "bhsd", "bhsd"))
    sizes = "{b=2, h=4, t=8 whole, s=8 whole, d=4 whole}"
    return Rule.parse(f"{text} {sizes} linear {{0}}")


@pytest.mark.parametrize(
    ("rule", "dtypes", "expected"),
    [
        (PRODUCT, ("bfloat16", "bfloat16", "float32"), "bfloat16"),
        (PRODUCT, ("bfloat16", "float32", "bfloat16"), "float32"),
        (PRODUCT, ("float8_e4m3fn", "float8_e4m3fn", "bfloat16"), "float8_e4m3fn"),
        (PRODUCT, ("int8", "int8", "int32"), "int8"),
        (PRODUCT, ("int8", "bfloat16", "float32"), "bfloat16"),
        (einsum("ik,k->i", (4, 8), (8,)), ("bfloat16", "float32", "float32"), "float32"),
        (flash_gradient(), ("bfloat16",) * 5 + ("float32",) + ("bfloat16",) * 3, "bfloat16"),
        (whole((), ((4,),)), ("int32",), "int32"),
        (whole(((4,),), ((4,),)), ("int32", "float32"), "int32"),
    ],
    ids=["sum", "mixed", "float8", "int8", "weights", "vector", "flash", "made", "converted"],
)
def test_an_operator_computes_in_what_it_multiplies(rule, dtypes, expected):
    assert arithmetic_dtype(rule, dtypes) == expected


def test_refuses_a_dtype_that_tells_no_size():
    with pytest.raises(RuleError, match="arithmetic_dtype takes"):
        arithmetic_dtype(PRODUCT, ("float32", 3, "float32"))


@pytest.mark.parametrize(
    ("dtypes", "rate"),
    [(("bfloat16", "bfloat16", "float32"), 16e12), (("int8", "int8", "int32"), 32e12)],
    ids=["bfloat16", "int8"],
)
def test_a_product_is_priced_at_the_rate_of_its_operands(dtypes, rate):
    graph = one_operator(PRODUCT, dtypes, flops=2e9)
    one = shard(graph, Mesh((1,), ("x",)), cluster(), compare=False)
    assert one.objective_s == pytest.approx(2e9 / rate)


def test_flash_attention_in_bfloat16_runs_at_its_rate_both_ways():
    gradient = one_operator(
        flash_gradient(), ("bfloat16",) * 5 + ("float32",) + ("bfloat16",) * 3, flops=1e9
    )
    found = shard(gradient, Mesh((1,), ("x",)), cluster(), compare=False)
    assert found.objective_s == pytest.approx(1e9 / 16e12)


@given(st.sampled_from(["int4", "uint8", "int32", "bool"]))
def test_no_integer_arithmetic_is_free(dtype):
    graph = one_operator(PRODUCT, (dtype,) * 3, flops=1e15)
    assert shard(graph, MESH, cluster(), compare=False).objective_s > 1.0


@given(st.lists(st.sampled_from([0.01, 1.0, 3.0, 100.0]), min_size=2, max_size=4))
def test_a_device_that_was_planned_for_before_prices_no_other(speeds):
    """Clusters of equal links share conversions, but no prices that depend on their devices.

    `verify` recomputes each price without the search's tables.
    """
    graph = mlp_step(batch=64, width=512, hidden=2048)
    for speed in speeds:
        prepare(graph, MESH, cluster(speed)).solve(compare=False).verify()
